#!/bin/sh
# The same as net_storm.t with 60 servers, each stormed for longer.
PFX_ROUNDS=${PFX_ROUNDS:-60}
PFX_SECONDS=${PFX_SECONDS:-8}
export PFX_ROUNDS PFX_SECONDS
exec "$top_srcdir/tests/net_storm.t"
