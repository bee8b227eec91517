#!/usr/bin/env bash
# Test the library for C and C++: tools/test_c.sh PYTHON [argument of pytest ...]
#
# Installs the Debian packages that the test needs if they are missing and this is root; otherwise names them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$1
shift

missing() {
    packages=()
    command -v gcc >/dev/null || packages+=(gcc)
    command -v g++ >/dev/null || packages+=(g++)
    command -v cmake >/dev/null || packages+=(cmake)
    command -v make >/dev/null || packages+=(make)
    command -v pkg-config >/dev/null || packages+=(pkg-config)
    for row in libjpeg:libjpeg-dev libpng:libpng-dev; do
        pkg-config --exists "${row%:*}" 2>/dev/null || packages+=("${row#*:}")
    done
}

missing
if [ ${#packages[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing ${packages[*]}"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" || true
    missing
fi
if [ ${#packages[@]} -gt 0 ]; then
    echo "error: the test of the library for C and C++ needs packages that are not installed (on Debian and Ubuntu: apt-get install ${packages[*]})" >&2
    exit 1
fi

BMX_MELIUS_TEST_C=1 exec "$python" -m pytest --timeout 1200 tests/native/test_c_library.py tests/native/test_bmx_classify.py \
    tests/images/test_image_kinds.py::test_bmx_classify_reads_jpeg_and_png_by_the_rule_and_names_the_other_formats "$@"
