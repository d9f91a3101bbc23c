/*
 * What the fake engine says to hits, top, tree, explain and trace: always the same, which is
 * what doc/protocol.md shows. tests/net_view.t holds the real engine's reports to these.
 */
#include "tests/fake_view.h"

#include <string.h>

#include "base/assert.h"

#define ROW(requests, prompt, cached, computed, rate) \
	ROW_OF(requests, prompt, cached, computed, rate, 0.0)
#define ROW_OF(requests, prompt, cached, computed, rate, block_rate) \
	"\"requests\":" #requests ",\"prompt_tokens\":" #prompt ",\"cached_tokens\":" #cached \
	",\"computed_tokens\":" #computed ",\"cached\":{\"device\":" #cached ",\"host\":0,\"disk\":0}," \
	"\"hit_rate\":" #rate ",\"ceiling\":" #rate ",\"ceiling_tokens\":{\"hit\":" #cached \
	",\"of\":" #prompt "},\"blocks\":{\"hit\":0,\"of\":" #requests ",\"hit_rate\":" #block_rate "}"
#define NONE "\"names\":0," ROW_OF(0, 0, 0, 0, null, null)

static const char *const hits =
	"{\"since_ms\":1700000000000,\"time_ms\":1700000060000,"
	"\"total\":{" ROW(2, 40, 20, 20, 0.5) "},"
	"\"namespaces\":[{\"namespace\":\"\",\"salt\":\"\",\"since_ms\":1700000000000,"
	ROW(2, 40, 20, 20, 0.5) "}],"
	"\"others\":{" NONE "},\"named\":[],\"named_others\":{" NONE "},"
	"\"minutes\":[{\"time_ms\":1700000040000," ROW(2, 40, 20, 20, 0.5) "}],"
	"\"block_tokens\":32,"
	"\"prefixes\":[{\"tokens\":20,\"namespace\":\"\",\"salt\":\"\",\"since_ms\":1700000000000,"
	"\"used_ms\":1700000050000,\"text\":\"You are\"," ROW(2, 40, 20, 20, 0.5) "}],"
	"\"ceiling\":{\"exact\":true,\"sampled\":1.0,\"blocks\":2,\"room\":786432,\"error\":0.0}}";

static const char *const top =
	"{\"time_ms\":1700000060000,\"uptime_s\":60.0,\"model\":\"echo\","
	"\"tokens\":{\"prompt\":40,\"computed\":20,\"cached\":{\"device\":20,\"host\":0,\"disk\":0},"
	"\"generated\":8},\"requests\":{\"running\":1,\"queued\":0,\"done\":2,\"cancelled\":0,"
	"\"failed\":0},\"steps\":{\"count\":9,\"rows\":28,\"us_per_row\":27.0},"
	"\"tiers\":{\"device\":{\"blocks\":64,\"free\":60,\"cached\":3,\"running\":1,\"pinned\":1,"
	"\"leased\":0,\"bytes\":1048576},\"host\":{\"blocks\":0,\"free\":0,\"cached\":0,\"running\":0,"
	"\"pinned\":0,\"leased\":0,\"bytes\":0},\"disk\":{\"records\":0,\"bytes\":0}},"
	"\"last_minutes\":{" ROW(2, 40, 20, 20, 0.5) "},"
	"\"list\":[{\"request\":3,\"op\":\"generate\",\"state\":\"decode\",\"namespace\":\"\","
	"\"salt\":\"\",\"prompt_tokens\":20,\"done_tokens\":20,\"cached_tokens\":19,"
	"\"completion_tokens\":8,\"max_tokens\":64,\"age_ms\":100.0,\"tokens_per_s\":80.0}],"
	"\"left_out\":0}";

#define BLOCKS "\"blocks\":{\"all\":1,\"device\":1,\"host\":0,\"disk\":0}"

static const char *const tree =
	"{\"block_tokens\":32,\"nodes\":2,\"tokens\":24,\"shown\":2,\"cut\":false,"
	"\"spaces\":[{\"namespace\":\"\",\"salt\":\"\",\"nodes\":["
	"{\"depth\":0,\"start\":0,\"tokens\":20," BLOCKS ",\"hits\":2,\"kids\":1,\"pins\":1,\"leases\":0,"
	"\"age_ms\":10,\"kept_ms\":null,\"ended\":false,\"text\":\"You are\",\"text_cut\":true},"
	"{\"depth\":1,\"start\":20,\"tokens\":4," BLOCKS ",\"hits\":0,\"kids\":0,\"pins\":0,\"leases\":0,"
	"\"age_ms\":10,\"kept_ms\":null,\"ended\":true,\"text\":\" Bob\",\"text_cut\":false}]}]}";

static const char *const explain_request =
	"{\"request\":7,\"op\":\"generate\",\"state\":\"done\",\"finish\":\"length\",\"error\":null,"
	"\"namespace\":\"\",\"salt\":\"\",\"prompt_tokens\":40,\"cached_tokens\":20,"
	"\"computed_tokens\":20,\"completion_tokens\":4,"
	"\"spans\":[{\"tier\":\"device\",\"from\":0,\"to\":20},{\"tier\":\"computed\",\"from\":20,"
	"\"to\":40}],\"preempted\":0,\"recomputed_tokens\":0,"
	"\"miss\":{\"reason\":\"diverged\",\"at_token\":20,\"message\":1,\"byte\":3,"
	"\"evicted_ms_ago\":null,\"token\":66,\"text\":\"B\"},"
	"\"timing\":{\"queue_ms\":0.1,\"prefill_ms\":5.0,\"ttft_ms\":5.1,\"total_ms\":20.0,"
	"\"ended_ms_ago\":1000.0}}";

static const char *const explain_prompt =
	"{\"prompt_tokens\":24,\"cached_tokens\":20,"
	"\"spans\":[{\"tier\":\"device\",\"from\":0,\"to\":20},{\"tier\":\"to compute\",\"from\":20,"
	"\"to\":24}],\"logits_kept\":false,"
	"\"nodes\":[{\"start\":0,\"tokens\":20,\"matched\":20," BLOCKS ",\"hits\":2,\"pins\":0,"
	"\"leases\":0,\"age_ms\":10.0}],\"nodes_left_out\":0,"
	"\"miss\":{\"reason\":\"diverged\",\"at_token\":20,\"message\":null,\"byte\":20,"
	"\"evicted_ms_ago\":null,\"token\":66,\"text\":\"Bill\",\"cached_instead\":[{\"token\":66,"
	"\"text\":\"Bob\"}]},\"estimate\":{\"compute_tokens\":4,\"compute_ms\":1.0,\"slower_tiers\":[]},"
	"\"in_flight\":null,\"elsewhere\":[]}";

static json_t *trace(const json_t *args)
{
	const char *action = json_string_value(json_object_get(args, "action"));
	const char *path = json_string_value(json_object_get(args, "path"));
	const char *state = action != NULL && strcmp(action, "start") == 0 ? "recording" : "stopped";

	return json_pack("{s:s,s:s,s:i,s:i,s:i,s:i,s:i,s:n}", "state", state, "path",
		path != NULL ? path : "/var/tmp/t.jsonl", "records", 0, "bytes", 0, "max_bytes", 1 << 30,
		"dropped", 0, "reordered", 0, "error");
}

json_t *fake_view_report(const struct pfx_job *job, const char **name)
{
	const json_t *number = json_object_get(job->args, "request");
	const char *text = NULL;
	json_t *report;

	switch (job->kind) {
	case PFX_JOB_HITS:
		*name = "hits";
		text = hits;
		break;
	case PFX_JOB_TOP:
		*name = "top";
		text = top;
		break;
	case PFX_JOB_TREE:
		*name = "tree";
		text = tree;
		break;
	case PFX_JOB_EXPLAIN:
		*name = "explain";
		text = number != NULL ? explain_request : explain_prompt;
		break;
	case PFX_JOB_TRACE:
		*name = "trace";
		return trace(job->args);
	default:
		return NULL;
	}
	report = json_loads(text, 0, NULL);
	PFX_ASSERT(report != NULL);
	return report;
}
