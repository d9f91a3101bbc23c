#!/bin/sh
# The same as net_store.t with 200 kills and as many flipped bits.
PFX_ROUNDS=${PFX_ROUNDS:-200}
export PFX_ROUNDS
exec "$top_srcdir/tests/net_store.t"
