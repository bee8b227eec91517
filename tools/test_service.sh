#!/usr/bin/env bash
# Test the service: tools/test_service.sh PYTHON [argument of pytest ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$1
shift

tools/install_chromium.sh
"$python" -c 'import locust, selenium'  # one clear error instead of tests that fail
BMX_MELIUS_TEST_SERVICE=1 exec "$python" -m pytest tests/serving "$@"
