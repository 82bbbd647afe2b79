// SPDX-License-Identifier: Apache-2.0
/*
 * The calls of virtual memory, written down.  Each asks the driver first and alone
 * decides nothing: what the ledger does with a success can no longer fail, since its
 * memory was taken before, and a failure leaves it as it was.
 *
 * Only imported handles are ours, and are exchanged for the driver's on their way in.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "contexts.h"
#include "gate.h"
#include "owned.h"
#include "peer.h"
#include "tracker.h"

static void leave(const unsigned int *where)
{
	cui_leave(*where);
}
#define INSIDE __attribute__((cleanup(leave), unused)) unsigned int inside = cui_enter()

/* The C ABI of cuda.h, of which these are read. */
struct location {
	int type, id;
};
struct properties {
	int type, handle_types;
	struct location location;
};
struct access {
	struct location location;
	int flags;
};
struct array_map { /* CUarrayMapInfo */
	char before[64];
	uint64_t handle;
	char after[24];
};
enum { LOCATION_DEVICE = 1, OPERATION_MAP = 1 };

/* The memory of a handle, kept until put(), and the number to call the driver with. */
static struct cui_memory *get(uint64_t handle, uint64_t *number)
{
	cui_ledger_lock();
	struct cui_memory *memory = cui_memory_by_handle(handle);
	*number = memory && memory->imported ? memory->real : handle;
	if (memory)
		memory->users++;
	cui_ledger_unlock();
	return memory;
}

static void put(struct cui_memory *memory)
{
	if (!memory)
		return;
	cui_ledger_lock();
	memory->users--;
	cui_memory_settle(memory);
	cui_ledger_unlock();
}

static struct cui_memory *new_memory(void)
{
	struct cui_memory *memory = calloc(1, sizeof(*memory));

	if (memory) {
		memory->references = 1;
		memory->context = cui_context_note();
		cui_devices_note();
	}
	return memory;
}

static CUresult track_cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
					  unsigned long long flags)
{
	INSIDE;
	struct cui_range *reservation = calloc(1, sizeof(*reservation));

	if (!reservation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = real_cuMemAddressReserve(ptr, size, alignment, addr, flags);
	if (result) {
		free(reservation);
		return result;
	}
	reservation->start = *ptr;
	reservation->end = *ptr + size;
	cui_ledger_lock();
	cui_call_wait(CUI_ADDRESSES, reservation->start, reservation->end);
	cui_reservation_add(reservation);
	cui_ledger_unlock();
	return result;
}

static CUresult track_cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
	INSIDE;
	struct cui_call call;

	cui_ledger_lock();
	cui_call_begin(CUI_ADDRESSES, &call, ptr, ptr + size);
	cui_ledger_unlock();
	CUresult result = real_cuMemAddressFree(ptr, size);
	cui_ledger_lock();
	if (!result)
		cui_reservation_remove(ptr);
	cui_call_end(CUI_ADDRESSES, &call);
	cui_ledger_unlock();
	return result;
}

/* A handle that the driver gave; a call that used the same number up may not have been written down yet. */
static void add(struct cui_memory *memory)
{
	cui_ledger_lock();
	cui_call_wait(CUI_HANDLES, memory->handle, memory->handle + 1);
	cui_memory_add(memory);
	cui_ledger_unlock();
}

static CUresult track_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
				  unsigned long long flags)
{
	INSIDE;
	struct cui_memory *memory = new_memory();

	if (!memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	cui_share_start();
	CUresult result = real_cuMemCreate(handle, size, prop, flags);
	if (result) {
		free(memory);
		return result;
	}
	const struct properties *properties = (const void *)prop;
	memory->handle = *handle;
	memory->size = size;
	memory->handle_types = properties->handle_types;
	memory->device = properties->location.type == LOCATION_DEVICE ? properties->location.id : -1;
	add(memory);
	return result;
}

static CUresult track_cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop)
{
	INSIDE;
	struct cui_memory *memory = new_memory();

	if (!memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	cui_share_start();
	CUresult result = real_cuMulticastCreate(handle, prop);
	if (result) {
		free(memory);
		return result;
	}
	memory->handle = *handle;
	memory->multicast = true;
	memory->device = -1;
	add(memory);
	return result;
}

/* Of an import, all references but the last are ours alone. */
static CUresult track_cuMemRelease(CUmemGenericAllocationHandle handle)
{
	INSIDE;
	struct cui_call call;
	struct cui_memory *memory;
	CUresult result = CUDA_SUCCESS;

	cui_ledger_lock();
	cui_call_begin(CUI_HANDLES, &call, handle, handle + 1);
	memory = cui_memory_by_handle(handle);
	uint64_t number = memory && memory->imported ? memory->real : handle;
	/* what a checkpoint lost has nothing that the driver could release */
	bool spare = memory && memory->imported && (memory->references > 1 || (memory->lost.stage && !memory->real));
	cui_ledger_unlock();
	if (!spare)
		result = real_cuMemRelease(number);
	cui_ledger_lock();
	if (memory && memory->references && !result) {
		if (--memory->references == 0) {
			if (memory->imported)
				memory->real = 0;
			cui_memory_settle(memory);
		}
	}
	cui_call_end(CUI_HANDLES, &call);
	cui_ledger_unlock();
	return result;
}

/* We hold one reference on an import, whatever the program holds; a second one goes back at once. */
static CUresult track_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	INSIDE;
	CUresult result = real_cuMemRetainAllocationHandle(handle, addr);
	struct cui_mapping *mapping;

	if (result)
		return result;
	cui_ledger_lock();
	cui_call_wait(CUI_HANDLES, *handle, *handle + 1);
	mapping = cui_mapping_at((uintptr_t)addr, (uintptr_t)addr + 1);
	struct cui_memory *memory = mapping ? mapping->memory : NULL;
	uint64_t extra = 0;
	if (memory && memory->imported) {
		if (memory->references++)
			extra = *handle;
		else
			memory->real = *handle;
		*handle = memory->handle;
	} else if (memory) {
		memory->references++;
		if (memory->handle != *handle)
			cui_memory_rename(memory, *handle);
	}
	cui_ledger_unlock();
	if (extra)
		real_cuMemRelease(extra);
	return result;
}

/* Which context is current is noted by the call that gives access: nothing can touch the range before it. */
static CUresult track_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
			       unsigned long long flags)
{
	INSIDE;
	struct cui_call call;

	cui_ledger_lock();
	struct cui_mapping *mapping = cui_mapping_new();
	if (!mapping) {
		cui_ledger_unlock();
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	mapping->range.start = ptr;
	mapping->range.end = ptr + size;
	mapping->offset = offset;
	mapping->flags = flags;
	cui_call_begin(CUI_ADDRESSES, &call, ptr, ptr + size);
	struct cui_memory *memory = cui_memory_by_handle(handle);
	uint64_t number = memory && memory->imported ? memory->real : handle;
	if (memory)
		memory->users++;
	cui_ledger_unlock();
	CUresult result = real_cuMemMap(ptr, size, offset, number, flags);
	cui_ledger_lock();
	if (result) {
		cui_mapping_unused(mapping);
	} else {
		mapping->memory = memory;
		cui_mapping_add(mapping);
	}
	if (memory) {
		memory->users--;
		cui_memory_settle(memory);
	}
	cui_call_end(CUI_ADDRESSES, &call);
	cui_ledger_unlock();
	return result;
}

/* Whether a checkpoint lost all that is mapped in a range: there is nothing that the driver could unmap. */
static bool all_lost(uint64_t start, uint64_t end)
{
	struct cui_mapping *mapping = cui_mapping_at(start, end);

	if (!mapping)
		return false;
	for (; mapping && start < end; mapping = cui_mapping_at(start, end)) {
		if (!mapping->away)
			return false;
		start = mapping->range.end;
	}
	return true;
}

static CUresult track_cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	INSIDE;
	struct cui_call call;

	cui_ledger_lock();
	cui_call_begin(CUI_ADDRESSES, &call, ptr, ptr + size);
	bool lost = all_lost(ptr, ptr + size);
	cui_ledger_unlock();
	CUresult result = lost ? CUDA_SUCCESS : real_cuMemUnmap(ptr, size);
	cui_ledger_lock();
	if (!result)
		cui_mappings_remove(ptr, ptr + size);
	cui_call_end(CUI_ADDRESSES, &call);
	cui_ledger_unlock();
	return result;
}

/* With the ledger's lock. */
static void record_access(uint64_t start, uint64_t end, const struct access *descriptions, size_t count)
{
	struct cui_mapping *mapping;

	while (start < end && (mapping = cui_mapping_at(start, end))) {
		uint64_t from = mapping->range.start > start ? mapping->range.start : start;
		uint64_t to = mapping->range.end < end ? mapping->range.end : end;

		for (size_t i = 0; i < count; i++) {
			struct cui_access access = { from, to - from, descriptions[i].location.type,
						     descriptions[i].location.id, descriptions[i].flags };

			if (!cui_mapping_set_access(mapping, &access) && mapping->memory && mapping->memory->imported)
				cui_note(CUI_NOTE_untracked, 1);
		}
		start = to;
	}
}

static CUresult track_cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	INSIDE;
	struct cui_call call;

	cui_context_note();
	cui_ledger_lock();
	cui_call_begin(CUI_ADDRESSES, &call, ptr, ptr + size);
	cui_ledger_unlock();
	CUresult result = real_cuMemSetAccess(ptr, size, desc, count);
	cui_ledger_lock();
	if (!result)
		record_access(ptr, ptr + size, (const void *)desc, count);
	cui_call_end(CUI_ADDRESSES, &call);
	cui_ledger_unlock();
	return result;
}

static CUresult track_cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
	INSIDE;
	return real_cuMemGetAccess(flags, location, ptr);
}

static CUresult track_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
							     CUmemGenericAllocationHandle handle)
{
	INSIDE;
	uint64_t number;
	struct cui_memory *memory = get(handle, &number);
	CUresult result = real_cuMemGetAllocationPropertiesFromHandle(prop, number);

	put(memory);
	return result;
}

static CUresult map_arrays(CUresult (*real)(CUarrayMapInfo *, unsigned int, CUstream), CUarrayMapInfo *list,
			   unsigned int count, CUstream stream)
{
	INSIDE;
	const struct array_map *given = (const void *)list;
	struct array_map *copy = count ? calloc(count, sizeof(*copy)) : NULL;

	if (count && !copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (count)
		memcpy(copy, given, count * sizeof(*copy));
	cui_ledger_lock();
	for (unsigned int i = 0; i < count; i++) {
		struct cui_memory *memory = cui_memory_by_handle(copy[i].handle);

		if (memory && memory->imported) {
			copy[i].handle = memory->real;
			memory->entangled = true; /* even if the call fails: it may have begun */
		}
	}
	cui_ledger_unlock();
	CUresult result = real(count ? (void *)copy : list, count, stream);
	free(copy);
	return result;
}

static CUresult track_cuMemMapArrayAsync(CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream)
{
	return map_arrays(real_cuMemMapArrayAsync, mapInfoList, count, hStream);
}

static CUresult track_cuMemMapArrayAsync_ptsz(CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream)
{
	return map_arrays(real_cuMemMapArrayAsync_ptsz, mapInfoList, count, hStream);
}

/* Puts a ticket where the driver's descriptor is, under the same number.  Else the descriptor stays, and is noted. */
static void exchange_for_ticket(int fd, struct cui_memory *memory)
{
	const char *wanted = getenv("CUINTERPOSE_TRACK_EXPORT");
	struct cui_ticket ticket;
	CUI_OWNED int sealed = -1;
	bool can = memory && !memory->foreign && !memory->multicast && !(wanted && strcmp(wanted, "driver") == 0);

	if (can) {
		cui_ledger_lock();
		can = cui_share_ticket(memory, &ticket);
		cui_ledger_unlock();
	}
	if (!can || cui_ticket_create(&ticket, &sealed) || dup3(sealed, fd, O_CLOEXEC) < 0)
		cui_note(CUI_NOTE_descriptor_given, 1);
}

static CUresult track_cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
						   CUmemAllocationHandleType handleType, unsigned long long flags)
{
	INSIDE;
	uint64_t number;
	struct cui_memory *memory = get(handle, &number);
	CUresult result = real_cuMemExportToShareableHandle(shareableHandle, number, handleType, flags);

	if (!result) {
		cui_share_start();
		if (handleType == POSIX_FILE_DESCRIPTOR)
			exchange_for_ticket(*(int *)shareableHandle, memory);
		else
			cui_note(CUI_NOTE_fabric_given, 1);
	}
	put(memory);
	return result;
}

/* From the driver's own descriptor or another of its handles: the program gets a number of ours. */
static CUresult import(struct cui_memory *memory, CUmemGenericAllocationHandle *handle, void *os_handle,
		       CUmemAllocationHandleType type)
{
	CUmemGenericAllocationHandle number;
	CUresult result = real_cuMemImportFromShareableHandle(&number, os_handle, type);

	if (result) {
		free(memory);
		return result;
	}
	memory->real = number;
	cui_ledger_lock();
	memory->handle = cui_fresh_handle();
	*handle = memory->handle;
	cui_memory_add(memory);
	cui_ledger_unlock();
	return result;
}

/* While a creator's checkpoint is being taken it answers BUSY; the importer waits, as any call of the creator would. */
enum { CHECKPOINT_MS = 10 * 60 * 1000, PAUSE_US = 5000 };

static CUresult import_ticket(CUmemGenericAllocationHandle *handle, const struct cui_ticket *ticket)
{
	int64_t patience = cui_now_ms() + CHECKPOINT_MS;

	for (;;) {
		{
			INSIDE;
			struct cui_memory *memory = new_memory();
			CUI_OWNED int fd = -1;
			int32_t cuda;

			if (!memory)
				return CUDA_ERROR_OUT_OF_MEMORY;
			memory->imported = true;
			memory->ticket = *ticket;
			cui_share_start();
			enum cui_status status = cui_share_ask(ticket, patience, &fd, &cuda);
			if (status == CUI_OK)
				return import(memory, handle, (void *)(intptr_t)fd, POSIX_FILE_DESCRIPTOR);
			free(memory);
			if (status != CUI_BUSY || cui_now_ms() >= patience)
				return cui_status_to_cuda(status, cuda);
		}
		/* outside: a checkpoint may be taken of this process too */
		usleep(PAUSE_US);
	}
}

static CUresult track_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
						     CUmemAllocationHandleType shHandleType)
{
	struct cui_ticket ticket;

	if (shHandleType == POSIX_FILE_DESCRIPTOR)
		switch (cui_ticket_classify((int)(intptr_t)osHandle, &ticket)) {
		case CUI_BAD_TICKET:
			return CUDA_ERROR_INVALID_VALUE;
		case CUI_TICKET:
			return import_ticket(handle, &ticket);
		case CUI_NOT_A_TICKET:
			break;
		}
	INSIDE;
	struct cui_memory *memory = new_memory();
	if (!memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memory->imported = memory->foreign = true;
	cui_share_start();
	return import(memory, handle, osHandle, shHandleType);
}

/* Multicast is passed on as it is; an import that takes part in it cannot be let go of. */
static struct cui_memory *get_entangled(uint64_t handle, uint64_t *number)
{
	struct cui_memory *memory = get(handle, number);

	if (memory && memory->imported) {
		cui_ledger_lock();
		memory->entangled = true;
		cui_ledger_unlock();
	}
	return memory;
}

#define WITH_MULTICAST(name, params, memory_handle, ...)                             \
	static CUresult track_##name params                                          \
	{                                                                            \
		INSIDE;                                                              \
		uint64_t multicast, number;                                          \
		struct cui_memory *object = get_entangled(mcHandle, &multicast);     \
		struct cui_memory *memory = get_entangled(memory_handle, &number);   \
		CUresult result = real_##name(multicast, __VA_ARGS__);               \
		put(memory);                                                         \
		put(object);                                                         \
		return result;                                                       \
	}
WITH_MULTICAST(cuMulticastAddDevice, (CUmemGenericAllocationHandle mcHandle, CUdevice dev), 0, dev)
WITH_MULTICAST(cuMulticastBindMem,
	       (CUmemGenericAllocationHandle mcHandle, size_t mcOffset, CUmemGenericAllocationHandle memHandle,
		size_t memOffset, size_t size, unsigned long long flags),
	       memHandle, mcOffset, number, memOffset, size, flags)
WITH_MULTICAST(cuMulticastBindMem_v2,
	       (CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
		CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size, unsigned long long flags),
	       memHandle, dev, mcOffset, number, memOffset, size, flags)
WITH_MULTICAST(cuMulticastBindAddr,
	       (CUmemGenericAllocationHandle mcHandle, size_t mcOffset, CUdeviceptr memptr, size_t size,
		unsigned long long flags),
	       0, mcOffset, memptr, size, flags)
WITH_MULTICAST(cuMulticastBindAddr_v2,
	       (CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset, CUdeviceptr memptr, size_t size,
		unsigned long long flags),
	       0, dev, mcOffset, memptr, size, flags)
WITH_MULTICAST(cuMulticastUnbind,
	       (CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset, size_t size), 0, dev, mcOffset,
	       size)

const void *const cui_vmm_functions[CUI_DRIVER_ENTRIES] = {
#define T(name) [CUI_##name] = track_##name
	T(cuMemAddressFree),
	T(cuMemAddressReserve),
	T(cuMemCreate),
	T(cuMemExportToShareableHandle),
	T(cuMemGetAccess),
	T(cuMemGetAllocationPropertiesFromHandle),
	T(cuMemImportFromShareableHandle),
	T(cuMemMap),
	T(cuMemMapArrayAsync),
	T(cuMemMapArrayAsync_ptsz),
	T(cuMemRelease),
	T(cuMemRetainAllocationHandle),
	T(cuMemSetAccess),
	T(cuMemUnmap),
	T(cuMulticastAddDevice),
	T(cuMulticastBindAddr),
	T(cuMulticastBindAddr_v2),
	T(cuMulticastBindMem),
	T(cuMulticastBindMem_v2),
	T(cuMulticastCreate),
	T(cuMulticastUnbind),
#undef T
};
