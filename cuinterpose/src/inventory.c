// SPDX-License-Identifier: Apache-2.0
/* What this process holds, as JSON (schema cuinterpose.process/1) in a sealed descriptor. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "contexts.h"
#include "owned.h"
#include "tracker.h"

static const char *const phase_names[] = {
	[CUI_OPEN] = "open",	   [CUI_CLOSED] = "closed",   [CUI_LET_GO_OF] = "let go", [CUI_HELD] = "held",
	[CUI_LOCKED] = "locked",   [CUI_SERVING] = "serving", [CUI_BACK] = "back",	  [CUI_HEALING] = "healing",
};
static const char *const note_names[] = {
#define X(name) #name,
	CUI_NOTES(X)
#undef X
};

static void put_identity(FILE *out, const char *name, const struct cui_identity *identity)
{
	fprintf(out, ",\"%s\":", name);
	if (cui_identity_zero(identity)) {
		fputs("null", out);
		return;
	}
	fputc('"', out);
	for (unsigned int i = 0; i < sizeof(identity->bytes); i++)
		fprintf(out, "%02x", identity->bytes[i]);
	fputc('"', out);
}

/* A path is bytes: each that is not plain ASCII is the character of its number. */
static void put_path(FILE *out, const char *path)
{
	fputc('"', out);
	for (const unsigned char *c = (const unsigned char *)path; *c; c++)
		fprintf(out, *c < 0x20 || *c > 0x7e || *c == '"' || *c == '\\' ? "\\u%04x" : "%c", *c);
	fputc('"', out);
}

static void put_mappings(FILE *out, const struct cui_memory *memory)
{
	fputs(",\"mappings\":[", out);
	for (const struct cui_mapping *mapping = memory->first; mapping; mapping = mapping->next) {
		fprintf(out, "%s{\"address\":%llu,\"size\":%llu,\"offset\":%llu,\"away\":%s,\"access\":[",
			mapping == memory->first ? "" : ",", (unsigned long long)mapping->range.start,
			(unsigned long long)(mapping->range.end - mapping->range.start),
			(unsigned long long)mapping->offset, mapping->away ? "true" : "false");
		for (unsigned int i = 0; i < mapping->accesses; i++) {
			const struct cui_access *access = &mapping->access[i];

			fprintf(out, "%s{\"address\":%llu,\"size\":%llu,\"type\":%d,\"id\":%d,\"flags\":%d}", i ? "," : "",
				(unsigned long long)access->start, (unsigned long long)access->size, access->type,
				access->id, access->flags);
		}
		fputs("]}", out);
	}
	fputc(']', out);
}

static void put_created(FILE *out, const struct cui_memory *memory)
{
	fprintf(out, "{\"size\":%llu,\"device\":%d,\"handle_types\":%d,\"multicast\":%s,\"references\":%u",
		(unsigned long long)memory->size, memory->device, memory->handle_types,
		memory->multicast ? "true" : "false", memory->references);
	put_identity(out, "resource", &memory->resource);
	fputs(",\"importers\":[", out);
	for (unsigned int i = 0; i < memory->importer_count; i++)
		fprintf(out, "%s{\"pid\":%d,\"started\":%llu}", i ? "," : "", memory->importers[i].pid,
			(unsigned long long)memory->importers[i].started);
	fputc(']', out);
	put_mappings(out, memory);
	fputc('}', out);
}

static void put_import(FILE *out, const struct cui_memory *memory)
{
	fprintf(out, "{\"foreign\":%s,\"entangled\":%s,\"references\":%u,\"lost\":",
		memory->foreign ? "true" : "false", memory->entangled ? "true" : "false", memory->references);
	if (memory->lost.stage)
		fprintf(out, "{\"stage\":%d,\"cuda\":%d}", memory->lost.stage, memory->lost.cuda);
	else
		fputs("null", out);
	put_identity(out, "participant", &memory->ticket.participant);
	put_identity(out, "resource", &memory->ticket.resource);
	fputs(",\"endpoint\":", out);
	put_path(out, memory->ticket.endpoint);
	put_mappings(out, memory);
	fputc('}', out);
}

static void put_all(FILE *out, bool imported)
{
	const char *separator = "";

	for (const struct cui_memory *memory = cui_memory_first(); memory; memory = memory->next)
		if (memory->imported == imported) {
			fputs(separator, out);
			(imported ? put_import : put_created)(out, memory);
			separator = ",";
		}
}

static void put_process(FILE *out)
{
	uint64_t at = 0;
	struct cui_range *reservation;
	const char *separator = "";

	fprintf(out, "{\"schema\":\"cuinterpose.process/1\",\"pid\":%d,\"phase\":\"%s\",\"captures\":%d,\"contexts\":%u,\"devices\":%d",
		getpid(), phase_names[cui_cycle_phase()], atomic_load(&cui_captures), cui_contexts_count(),
		cui_devices_count());
	put_identity(out, "participant", cui_share_participant());
	cui_ledger_lock();
	fputs(",\"allocations\":[", out);
	put_all(out, false);
	fputs("],\"imports\":[", out);
	put_all(out, true);
	fputs("],\"reservations\":[", out);
	while ((reservation = cui_reservation_at(at, UINT64_MAX))) {
		fprintf(out, "%s{\"address\":%llu,\"size\":%llu}", separator, (unsigned long long)reservation->start,
			(unsigned long long)(reservation->end - reservation->start));
		separator = ",";
		at = reservation->end;
	}
	fputs("],\"notes\":{", out);
	for (unsigned int i = 0; i < CUI_NOTE_COUNT; i++)
		fprintf(out, "%s\"%s\":%ld", i ? "," : "", note_names[i], cui_noted(i));
	cui_ledger_unlock();
	fputs("}}\n", out);
}

static void release(char **text)
{
	free(*text);
}

int cui_inventory(void)
{
	__attribute__((cleanup(release))) char *text = NULL;
	CUI_OWNED int fd = -1;
	size_t size = 0;
	FILE *out = open_memstream(&text, &size);

	if (!out)
		return -1;
	put_process(out);
	if (fclose(out))
		return -1;
	fd = cui_sealed("cuinterpose-inventory", text, size);
	return cui_take(&fd);
}
