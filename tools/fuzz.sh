#!/usr/bin/env bash
# Fuzz the readers of files: tools/fuzz.sh PYTHON [argument of run_fuzzers.py ...]
#
# Installs Clang and its libFuzzer from Debian if they are missing and this is root; otherwise names the packages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$1
shift

# Whether Clang links a fuzzer with both sanitizers: their libraries are separate packages.
works() {
    command -v clang++ >/dev/null && echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
        clang++ -fsanitize=fuzzer,address,undefined -x c++ - -o /dev/null 2>/dev/null
}

if ! works && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing clang"
    apt-get update -qq
    for package in clang libclang-rt-dev; do  # in some releases the second one is part of the first
        works || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" || true
    done
fi
if ! works; then
    echo "error: fuzzing needs Clang with libFuzzer and sanitizers (on Debian and Ubuntu: apt-get install clang libclang-rt-dev)" >&2
    exit 1
fi
exec "$python" -W ignore tools/run_fuzzers.py "$@"
