#ifndef PFX_PERSIST_AUDIT_H
#define PFX_PERSIST_AUDIT_H

/*
 * Reads an LMDB data file page by page, trusting nothing, and tells whether LMDB may be let
 * loose on it. LMDB follows page numbers and offsets as it finds them in the map, so one
 * flipped bit can end the process that reads or, worse, let a writer overwrite live pages.
 * What is checked, of the newest snapshot: both meta pages; that each page number, size and
 * offset stays inside its bounds; that nodes do not overlap; that keys ascend over the whole
 * of a tree; that depth and counts are as the tree's own record says; and that no page is
 * reachable twice, be it through a tree, a value or the list of free pages.
 *
 * It reads the pages of trees and of the free list, never a value, so it says nothing about KV:
 * that has a checksum. The 16 bytes that LMDB keeps before a large value follow from the tree
 * as we write it, so they are not read either: who is about to have LMDB use them mends them
 * first, with pfx_audit_value_head. (A program that makes a value smaller in the transaction
 * that wrote it lets them differ; its file is refused.) Knows the format of LMDB 0.9 (data
 * version 1) with 8-byte page numbers.
 */

#include <stddef.h>
#include <stdint.h>

/*
 * 0: sound, or empty (no file, no bytes). PFX_E_FORMAT, PFX_E_TRUNCATED: damaged;
 * PFX_E_UNSUPPORTED: not of that format. -ENOMEM, -EIO... why gets a sentence unless 0.
 */
int pfx_audit(const char *file, char *why, size_t whylen);

/* What must stand before a value of n bytes that begins page pgno. */
#define PFX_AUDIT_HEAD 16
void pfx_audit_value_head(uint8_t out[PFX_AUDIT_HEAD], uint64_t pgno, size_t n,
	uint32_t page_size);

#endif
