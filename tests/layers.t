#!/bin/sh
# Includes point downwards only (README.md, "How it hangs together"): radix, kernels and persist know
# nothing of each other, net sees the engine through engine/engine.h alone, and a foreign
# library's header stands only where that library belongs.
cd "$top_srcdir" || exit 1
n=0 bad=0
# deny FOLDERS PATTERN WHY [EXCEPT]: no file there may include what PATTERN matches.
deny() {
	n=$((n + 1))
	# shellcheck disable=SC2086
	hits=$(find $1 -type f -name '*.[ch]' -print |
		xargs -r grep -nE "^[[:space:]]*#[[:space:]]*include[[:space:]]+[<\"]$2" /dev/null |
		grep -vE "${4:-^$}")
	for d in $1; do [ -d "$d" ] || hits="there is no folder $d"; done
	if [ -z "$hits" ]; then
		echo "ok $n - $1: $3"
	else
		bad=1
		echo "not ok $n - $1: $3"
		echo "$hits" | sed 's/^/#   /'
	fi
}
deny base '(radix|kernels|persist|engine|net|tools|tests)/' "includes only base/"
deny radix '(kernels|persist|engine|net|tools|tests)/' "includes only base/ and radix/"
deny kernels '(radix|persist|engine|net|tools|tests)/' "includes only base/ and kernels/"
deny persist '(radix|kernels|engine|net|tools|tests)/' "includes only base/ and persist/"
deny engine '(net|tools|tests)/' "includes nothing above it"
deny net '(radix|kernels|persist|tools|tests)/' "sees nothing below the engine"
deny "net tools" 'engine/' "see the engine through engine/engine.h only" 'engine/engine\.h'
deny tools '(kernels|persist|tests)/' "wires, and reaches no deeper"
deny "base radix kernels persist engine" 'event2?/|event2?\.h' "libevent belongs to net/"
deny "base radix persist engine net tools kernels/cpu" '(cuda|cublas)' "CUDA belongs to kernels/cuda/"
deny "base radix kernels engine net tools" 'lmdb' "LMDB belongs to persist/"
deny persist 'lmdb\.h' "only the LMDB store's own files know LMDB" 'persist/lmdb_priv\.h'
deny persist 'persist/lmdb_' "only the LMDB store's own files know LMDB" 'persist/(store_lmdb|lmdb_[a-z]*)\.c'
echo "1..$n"
exit $bad
