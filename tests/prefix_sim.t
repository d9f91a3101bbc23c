#!/bin/sh
# prefix-sim as people and scripts use it: its table, JSON and picture, and what it says when
# something is wrong. The rates themselves are test_sim's.
sim="$top_builddir/prefix-sim"
trace="$top_srcdir/tests/vectors/trace.jsonl"
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
n=0 bad=0
# is WHAT GOT WANTED-PATTERN: the whole of GOT matches.
is() {
	n=$((n + 1))
	case $2 in
	$3) echo "ok $n - $1" ;;
	*)
		bad=1
		echo "not ok $n - $1"
		printf '%s\n' "got: $2" "want: $3" | sed 's/^/#   /'
		;;
	esac
}
# fails WHAT STATUS PATTERN ARGUMENT...
fails() {
	what=$1 status=$2 pattern=$3
	shift 3
	out=$("$sim" "$@" 2>&1 >/dev/null </dev/null)
	rc=$?
	is "$what: status" $rc "$status"
	is "$what: message" "$out" "$pattern"
}
json=$("$sim" --trace "$trace" --capacity 150,1000 --policy lru,belady --json)
is "JSON: rows in the order asked for" "$json" \
	'{"ceiling":0.[0-9]*,"rows":\[{"policy":"lru","capacity":150,"hit_rate":0.[0-9]*},{"policy":"lru","capacity":1000,"hit_rate":0.[0-9]*},{"policy":"belady","capacity":150,"hit_rate":0.[0-9]*},{"policy":"belady","capacity":1000,"hit_rate":0.[0-9]*}\],"requests":341,"blocks":10440,"distinct":3982,*}'
is "one size twice says the same" "$("$sim" -t "$trace" -c 150,1000 -p lru,belady -j)" \
	"$(printf '%s' "$json" | sed 's/[][]/\\&/g')"
is "standard input" "$("$sim" -t - -c 150,1000 -p lru,belady -j <"$trace")" \
	"$(printf '%s' "$json" | sed 's/[][]/\\&/g')"
text=$("$sim" -t "$trace" -c 150)
is "text: a line of names" "$text" '* capacity *lru *fifo *belady*'
is "text: the ceiling" "$text" '* unlimited *'
is "a range of sizes" "$("$sim" -t "$trace" -c 100:400:*2,100:400:+150 -p fifo)" '*
       100 *
       200 *
       400 *
       100 *
       250 *
       400 *'
is "text: what is needed" "$text" '*needed for 90, 95 and 99 % of the ceiling*lru *(of the sizes above)'
is "last turns" "$("$sim" -t "$trace" -c 150 -p lru --ends)" '341 requests*; [1-9]* last turns;*'
is "bytes of a block" "$("$sim" -t "$trace" -c 128 -p lru --block-bytes 8M)" '*1.00 GiB*'
is "JSON: bytes" "$("$sim" -t "$trace" -c 128 -p lru --block-bytes 8M -j)" \
	'*"capacity":128,"hit_rate":0.[0-9]*,"bytes":1073741824}\]*"need":\[{"policy":"lru","share":0.90,"capacity":[1-9]*,"bytes":[1-9]*}*'
printf '{"input_length":40,"hash_ids":[1,2,3]}\n{"input_length":17,"hash_ids":[4,5]}\n' >"$dir/lengths"
is "bytes a token" "$("$sim" -t "$dir/lengths" -c 4 -p lru --bytes-per-token 1K)" '*of 16 tokens*64.0 KiB*'
is "at once" "$("$sim" -t "$trace" -c 150 -p lru --at-once 4 -j)" '*"refused":[0-9]*}*'
is "requests without room are told" "$("$sim" -t "$trace" -c 20 -p lru --at-once 8)" \
	'*Requests that found no room among what others hold: [1-9]* (lru, 20 blocks)'
is "tiers" "$("$sim" -t "$trace" --device 150 -p lru,belady --host 300 --disk 500)" \
	'*300 blocks in host memory and 500 on disk*spilled*150 *lru *'
is "JSON: tiers" "$("$sim" -t "$trace" -c 150 -p lru --host 300 --save off -j)" \
	'*"tiers":{"device":0.[0-9]*,"host":0.[0-9]*,"disk":0.000000},"moved":{"spilled":[1-9]*,"fetched":[1-9]*,"loaded":0,"saved":0},"refused":[0-9]*}*"host":300,"disk":0*'
is "a look ahead stands beside" "$("$sim" -t "$trace" -c 150 -p lru,belady --look-ahead 4)" '*lru lru+ahead *belady*'
is "sizes of its own accord" "$("$sim" -t "$trace" -p lru)" '*
        64 *
      4096 *'
"$sim" -t "$trace" -c 150,400,1000 --plot "$dir/a.svg" >/dev/null
is "plot: status" $? 0
is "plot: SVG with a curve for each policy" "$(cat "$dir/a.svg")" \
	'<svg *<polyline*<polyline*<polyline*</svg>'
is "help" "$("$sim" --help)" '*--capacity*belady*Exit status*'
fails "no trace" 2 '*--trace is needed*'
fails "unknown policy" 2 '*there is no "mru", only lru, *' -t "$trace" -p lru,mru
fails "a size that is no number" 2 '*"10k" is not a number of blocks*' -t "$trace" -c 5,10k
fails "a size of nothing" 2 '*"0" is not a number of blocks*' -t "$trace" -c 0
fails "a negative size" 2 '*"-3" is not a number of blocks*' -t "$trace" -c -3
for range in 5: :5 5:4 5:50:2 5:50:*1 5:50:+0 5:50:*2:3 5:x; do
	fails "range $range" 2 "*\"$range\" is no range*" -t "$trace" -c "$range"
done
fails "a size in no unit" 2 '*"3X" is not a number of bytes*' -t "$trace" --block-bytes 3X
fails "bytes a token, of a trace without lengths" 1 '*does not tell how many tokens*' \
	-t "$trace" --bytes-per-token 4
fails "no look" 2 '*"0" is not a number from 1*' -t "$trace" --look-ahead 0
fails "no host" 2 '*"few" is not a number of blocks*' -t "$trace" --host few
fails "saved how" 2 '*"some" is not one of off, reused, all*' -t "$trace" --save some
fails "none at once" 2 '*"0" is not a number from 1*' -t "$trace" --at-once 0
fails "no file" 1 "*$dir/none: No such file*" -t "$dir/none"
: >"$dir/empty"
fails "an empty file" 1 "*$dir/empty: there are no blocks in it" -t "$dir/empty"
printf '{"hash_ids":[1]}\n\n{"hash_ids":[1,2]\n' >"$dir/bad"
fails "a broken line" 1 "*$dir/bad:3: not a JSON object*" -t "$dir/bad"
printf '{"hash_ids":[1,-2]}\n' >"$dir/minus"
fails "a wrong id" 1 "*$dir/minus:1: hash_ids?1? is not an integer*" -t "$dir/minus"
fails "a folder to plot to" 1 "*cannot write $dir: *" -t "$trace" -c 5 -o "$dir"
"$sim" -t "$trace" -c 5 >/dev/full 2>"$dir/full"
is "a full disk: status" $? 1
is "a full disk: message" "$(cat "$dir/full")" '*cannot write: *'
echo "1..$n"
exit $bad
