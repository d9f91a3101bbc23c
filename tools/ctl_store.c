/* prefixctl: the tiers: what should go, what should be saved, how the store is. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "tools/ctl.h"

/* The second word of the command is what the store is to do. */
static void fill_store(struct pfx_ctl *ctl)
{
	json_object_set_new(ctl->fields, "do", json_string(strchr(ctl->command->name, ' ') + 1));
}

/* One tier is asked for by name, several as a list. */
static void fill_evict(struct pfx_ctl *ctl)
{
	json_t *tiers = json_object_get(ctl->fields, "tier");

	if (tiers != NULL && json_array_size(tiers) > 1) {
		pfx_ctl_die("evict takes one --tier");
	}
	if (tiers != NULL) {
		json_object_set(ctl->fields, "tier", json_array_get(tiers, 0));
	}
}

/* Normally there are none: the server waits for their end. */
static void put_moving(const json_t *reply)
{
	if (pfx_ctl_int(reply, "moving") > 0) {
		printf("; blocks still on their way %lld", pfx_ctl_int(reply, "moving"));
	}
}

static int tell_flush(const struct pfx_ctl *ctl, const json_t *reply)
{
	const json_t *blocks = json_object_get(reply, "blocks");

	printf("flushed blocks: device %lld, host %lld, disk %lld; in use %lld",
		pfx_ctl_int(blocks, "device"), pfx_ctl_int(blocks, "host"), pfx_ctl_int(blocks, "disk"),
		pfx_ctl_int(reply, "in_use"));
	put_moving(reply);
	puts(json_is_false(json_object_get(reply, "durable")) ? "; a restart may bring some back" : "");
	return 0;
}

static int tell_evict(const struct pfx_ctl *ctl, const json_t *reply)
{
	printf("evicted from %s: blocks %lld, ", pfx_ctl_str(reply, "tier"),
		pfx_ctl_int(reply, "blocks"));
	pfx_ctl_put_bytes(pfx_ctl_int(reply, "bytes"));
	printf("; in use %lld", pfx_ctl_int(reply, "in_use"));
	put_moving(reply);
	puts("");
	return 0;
}

static int tell_save(const struct pfx_ctl *ctl, const json_t *reply)
{
	printf("saved: records in the store %lld, ", pfx_ctl_int(reply, "records"));
	pfx_ctl_put_bytes(pfx_ctl_int(reply, "bytes"));
	puts("");
	return 0;
}

/* What it is to do is known to who asked. */
static int tell_info(const struct pfx_ctl *ctl, const json_t *reply)
{
	json_t *copy = json_copy((json_t *)reply);
	int rc;

	json_object_del(copy, "do");
	rc = pfx_ctl_tell_all(ctl, copy);
	json_decref(copy);
	return rc;
}

static int tell_verify(const struct pfx_ctl *ctl, const json_t *reply)
{
	printf("verified records %lld, ", pfx_ctl_int(reply, "records"));
	pfx_ctl_put_bytes(pfx_ctl_int(reply, "bytes"));
	printf("; damaged %lld\n", pfx_ctl_int(reply, "damaged"));
	return pfx_ctl_int(reply, "damaged") == 0 ? 0 : PFX_CTL_NOT_OK;
}

static int tell_compact(const struct pfx_ctl *ctl, const json_t *reply)
{
	fputs("compacted: the file has ", stdout);
	pfx_ctl_put_bytes(pfx_ctl_int(reply, "file_bytes"));
	fputs(", before ", stdout);
	pfx_ctl_put_bytes(pfx_ctl_int(reply, "file_bytes_before"));
	puts("");
	return 0;
}

static int tell_clear(const struct pfx_ctl *ctl, const json_t *reply)
{
	printf("cleared records %lld\n", pfx_ctl_int(reply, "records"));
	return 0;
}

static const struct pfx_ctl_command commands[] = {
	{ "flush", "flush", NULL, tell_flush, "forget what is cached, or a part of it", NULL },
	{ "evict", "evict", fill_evict, tell_evict, "push blocks out of a tier", NULL },
	{ "save", "save", NULL, tell_save, "write all that is in memory to the store", NULL },
	{ "store info", "store", fill_store, tell_info, "what the store holds and counts", NULL },
	{ "store verify", "store", fill_store, tell_verify, "read and check every record", NULL },
	{ "store compact", "store", fill_store, tell_compact, "give unused room back to the disk",
		NULL },
	{ "store clear", "store", fill_store, tell_clear, "forget what the store holds", NULL },
	{ 0 },
};

static const struct pfx_ctl_option options[] = {
	{ "tier", 0, "NAME", PFX_CTL_LIST, "tier",
		"flush, evict: device, host or disk (flush: repeat it)" },
	{ "blocks", 0, "N", PFX_CTL_INT, "blocks", "evict: so many; all without it" },
	{ "bytes", 0, "SIZE", PFX_CTL_SIZE, "bytes", "evict: as many as take so much" },
	{ 0 },
};

const struct pfx_ctl_group pfx_ctl_store = { "The tiers", commands, "Tiers", options };
