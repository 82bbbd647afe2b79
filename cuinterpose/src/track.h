/* SPDX-License-Identifier: Apache-2.0 */
/* What the shim gives the tracker, and what it gets: functions to call in place of the driver's. */
#ifndef CUI_TRACK_H
#define CUI_TRACK_H

#include <stdint.h>

#define CUI_TRACKER "libcutrack.so"
#define CUI_TRACK_START "cui_track_start"
#define CUI_TRACK_ABI 2

struct cui_host {
	uint32_t abi; /* CUI_TRACK_ABI: both are of one build, and a stale file must not get further */
	void *_Atomic *entries; /* the driver's functions by enum cui_entry, filled in as they are bound */
	void *(*driver_function)(const char *name); /* any other of libcuda.so.1, or NULL */
	uint32_t *tracked; /* of cuinterpose_stats */
};

/* What cuinterpose_stats says of tracking: a process without an endpoint must not be taken for one that shares nothing. */
enum cui_tracked {
	CUI_UNTRACKED,
	CUI_TRACKED, /* and nothing that an endpoint would be needed for has happened */
	CUI_TRACKED_AND_SERVING,
	CUI_TRACKED_WITHOUT_ENDPOINT, /* its directory could not be used */
};

/* Functions by enum cui_entry, NULL for what is not tracked; or NULL: another build, or no memory. */
typedef const void *const *cui_track_start_fn(const struct cui_host *host);

#endif
