#!/bin/bash
# Sets up CANN, then starts like the other images. bash: CANN's script is written for it.
set -eo pipefail

cann="${ASCEND_TOOLKIT_HOME:-/usr/local/Ascend/ascend-toolkit}"
if [ ! -r "${cann}/set_env.sh" ]; then
  echo "CANN is not installed: ${cann}/set_env.sh cannot be read" >&2
  exit 1
fi
# shellcheck source=/dev/null
source "${cann}/set_env.sh"
exec /usr/local/bin/entrypoint.sh "$@"
