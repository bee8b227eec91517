#!/usr/bin/env bash
# Test the service: tools/test_service.sh PYTHON [argument of pytest ...]
#
# Installs Chromium and its driver by apt-get if they are missing and this is root; otherwise names them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$1
shift

missing() {
    packages=()
    for package in chromium:chromium chromedriver:chromium-driver; do
        command -v "${package%:*}" >/dev/null || packages+=("${package#*:}")
    done
}

missing
if [ ${#packages[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing chromium and chromium-driver"  # both, because they must have the same version
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver || true
    missing
fi
if [ ${#packages[@]} -gt 0 ]; then
    echo "error: the test of the service needs packages that are not installed (on Debian: apt-get install ${packages[*]})" >&2
    exit 1
fi

"$python" -c 'import locust, selenium'  # one clear error instead of tests that fail
BMX_MELIUS_TEST_SERVICE=1 exec "$python" -m pytest tests/test_batching.py tests/test_service*.py "$@"
