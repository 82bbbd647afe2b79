// SPDX-License-Identifier: Apache-2.0
/*
 * Launches, copies and questions about addresses: they pass the gate and no more.
 * And what a checkpoint cannot keep: passed on, and counted once it has succeeded.
 */
#define _GNU_SOURCE
#include "contexts.h"
#include "gate.h"
#include "tracker.h"

/* Which contexts there are matters once there is an import that their work may touch. */
static inline void note_context(void)
{
	if (__builtin_expect(cui_imports() != 0, 0))
		cui_context_note();
}

#define GATED(name, params, args)                       \
	static CUresult track_##name params             \
	{                                               \
		unsigned int inside = cui_enter();      \
		note_context();                         \
		CUresult result = real_##name args;     \
		cui_leave(inside);                      \
		return result;                          \
	}
#define NOTHING(...)
CUI_WATCHED(GATED, NOTHING)

/* AFTER(name, CUI_Pn, CUI_An, what to do after a success, with a, b, ... at hand) */
#define AFTER(name, params, args, ...)                  \
	static CUresult track_##name params             \
	{                                               \
		unsigned int inside = cui_enter();      \
		cui_share_start();                      \
		CUresult result = real_##name args;     \
		if (!result) {                          \
			__VA_ARGS__;                    \
		}                                       \
		cui_leave(inside);                      \
		return result;                          \
	}
#define NOTED(name, n, note, change) AFTER(name, CUI_P##n, CUI_A##n, cui_note(CUI_NOTE_##note, change))

NOTED(cuIpcGetMemHandle, 2, ipc_memory_given, 1)
#define OPENS(name) \
	AFTER(name, (CUI_WORD a, struct cui_ipc_handle b, CUI_WORD c), CUI_A3, cui_note(CUI_NOTE_ipc_memory_opened, 1))
OPENS(cuIpcOpenMemHandle)
OPENS(cuIpcOpenMemHandle_v2)
NOTED(cuIpcCloseMemHandle, 1, ipc_memory_opened, -1)
NOTED(cuIpcGetEventHandle, 2, ipc_event_given, 1)

/* Which events are another process's: their end is that of any event. */
enum { EVENTS = 1024 };
static _Atomic uint64_t opened_events[EVENTS];

static void event_opened(uint64_t event)
{
	cui_note(CUI_NOTE_ipc_event_opened, 1);
	for (unsigned int i = 0; i < EVENTS; i++) {
		uint64_t none = 0;

		if (atomic_compare_exchange_strong(&opened_events[i], &none, event))
			return;
	}
}

/* Before the call: after it the address may be another event's. */
static void event_destroyed(uint64_t event)
{
	if (__builtin_expect(cui_noted(CUI_NOTE_ipc_event_opened) == 0, 1))
		return;
	for (unsigned int i = 0; i < EVENTS; i++) {
		uint64_t there = event;

		if (atomic_compare_exchange_strong(&opened_events[i], &there, 0)) {
			cui_note(CUI_NOTE_ipc_event_opened, -1);
			return;
		}
	}
}

AFTER(cuIpcOpenEventHandle, (CUI_WORD a, struct cui_ipc_handle b), CUI_A2, event_opened(*(uint64_t *)(uintptr_t)a))
#define ENDS_EVENT(name)                                \
	static CUresult track_##name CUI_P1             \
	{                                               \
		unsigned int inside = cui_enter();      \
		event_destroyed(a);                     \
		CUresult result = real_##name CUI_A1;   \
		cui_leave(inside);                      \
		return result;                          \
	}
ENDS_EVENT(cuEventDestroy)
ENDS_EVENT(cuEventDestroy_v2)
NOTED(cuMemPoolExportToShareableHandle, 4, pool_given, 1)
NOTED(cuMemPoolImportFromShareableHandle, 4, pool_imported, 1)
NOTED(cuImportExternalMemory, 2, external_memory, 1)
NOTED(cuDestroyExternalMemory, 1, external_memory, -1)
NOTED(cuImportExternalSemaphore, 2, external_semaphore, 1)
NOTED(cuDestroyExternalSemaphore, 1, external_semaphore, -1)
NOTED(cuMemGetHandleForAddressRange, 5, dma_buf_given, 1)
NOTED(cuLogicalEndpointExport, 3, endpoint_given, 1)
NOTED(cuLogicalEndpointImport, 3, endpoint_imported, 1)

AFTER(cuCtxDestroy, CUI_P1, CUI_A1, cui_context_destroyed((void *)(uintptr_t)a))
AFTER(cuCtxDestroy_v2, CUI_P1, CUI_A1, cui_context_destroyed((void *)(uintptr_t)a))

/* A capture ends whatever the outcome, unless the call was refused before it looked at one. */
atomic_int cui_captures;
enum { ILLEGAL_STATE = 401, CAPTURE_UNMATCHED = 903, CAPTURE_WRONG_THREAD = 908 };

#define BEGINS(name, n) AFTER(name, CUI_P##n, CUI_A##n, atomic_fetch_add(&cui_captures, 1))
#define ENDS(name)                                                                                           \
	static CUresult track_##name CUI_P2                                                                  \
	{                                                                                                    \
		unsigned int inside = cui_enter();                                                           \
		CUresult result = real_##name CUI_A2;                                                        \
		if (result != CUDA_ERROR_INVALID_VALUE && result != CUDA_ERROR_INVALID_HANDLE &&             \
		    result != ILLEGAL_STATE && result != CAPTURE_UNMATCHED && result != CAPTURE_WRONG_THREAD) \
			atomic_fetch_sub(&cui_captures, 1);                                                  \
		cui_leave(inside);                                                                           \
		return result;                                                                               \
	}
BEGINS(cuStreamBeginCapture, 1)
BEGINS(cuStreamBeginCapture_ptsz, 1)
BEGINS(cuStreamBeginCapture_v2, 2)
BEGINS(cuStreamBeginCapture_v2_ptsz, 2)
BEGINS(cuStreamBeginCaptureToGraph, 6)
BEGINS(cuStreamBeginCaptureToGraph_ptsz, 6)
ENDS(cuStreamEndCapture)
ENDS(cuStreamEndCapture_ptsz)

const void *const cui_watch_functions[CUI_DRIVER_ENTRIES] = {
#define X(name, ...) [CUI_##name] = track_##name,
	CUI_WATCHED(X, X)
#undef X
};
