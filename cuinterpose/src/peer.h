/* SPDX-License-Identifier: Apache-2.0 */
/* The importer's side: asks the creator that a ticket names for the real descriptor. */
#ifndef CUI_PEER_H
#define CUI_PEER_H

#include "frame.h"

/*
 * CUI_OK: *fd is a fresh descriptor with FD_CLOEXEC that the caller owns; it goes to the driver as it is, and is
 * never taken for a ticket again.  Otherwise *fd is -1; of CUI_CUDA, *cuda is the creator's CUresult.
 */
enum cui_status cui_export(const struct cui_ticket *ticket, unsigned int timeout_ms, int *fd, int32_t *cuda);

/* CUI_OK: *connected is the caller's, with both limits set; CUI_TRANSPORT; or CUI_PEER, of another uid. */
enum cui_status cui_connect(const char *endpoint, unsigned int timeout_ms, int *connected);

/* What cuMemImportFromShareableHandle returns for a status that is not CUI_OK. */
int cui_status_to_cuda(enum cui_status status, int32_t cuda);

#endif
