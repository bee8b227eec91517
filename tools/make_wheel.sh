#!/bin/sh
# make_wheel.sh PYTHON DIST [MACHINE]: build the source distribution from the files that git tracks, and a wheel from it; write both to the
# folder DIST, in place of older wheels. Called by the Makefile. PYTHON is an interpreter with the packages of requirements/tests.txt and
# wheel.txt. For another MACHINE, such as aarch64, only the wheel is written, compiled by MACHINE-linux-gnu-g++.
# The wheel has both libraries, for the systems that docs/deploying.md names: if the headers of this machine make them use symbols that these
# systems lack, there is no wheel, but a list of the symbols (docs/internals/releasing.md).
set -eu

glibc=27 # 2.27: the wheel is for manylinux_2_27 or older
newest_versions="GLIBC_2.$glibc GLIBCXX_3.4.24 CXXABI_1.3.11" # of the C and C++ libraries of these systems

python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
dist=$2
machine=${3:-$(uname -m)}

fail() {
    echo "error: $1" >&2
    exit 1
}

[ -e .git ] || fail 'wheels are built from a clone of the repository: the source distribution has the files that git tracks'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/source" "$work/wheel"
git ls-files -z | xargs -0 cp --parents --target-directory "$work/source"
# The same commit gives the same bytes: the times of files in the archives are the commit's.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

if [ "$machine" != "$(uname -m)" ]; then
    CXX=$machine-linux-gnu-g++
    _PYTHON_HOST_PLATFORM=linux-$machine # for which setuptools builds
    export CXX _PYTHON_HOST_PLATFORM
fi

(cd "$work/source" && "$python" -W ignore setup.py --quiet sdist --dist-dir "$work")
# The C++ runtime is the system's: linked statically, its code for GCC 12 would require glibc 2.36.
"$python" -m pip --disable-pip-version-check --quiet wheel --no-deps --no-index --no-build-isolation --wheel-dir "$work/wheel" "$work"/*.tar.gz
contents=$("$python" -m zipfile --list "$work"/wheel/*.whl)
# Without a compiler or MXNet a build succeeds and leaves libraries out.
for library in _engine.so _mxnet_op.so; do
    case $contents in
        *"bmx_melius/$library"*) ;;
        *) fail "$library has not been built: a C++ compiler and MXNet are needed; python setup.py build_ext prints the reason" ;;
    esac
done

# Print the symbols of a library that are newer than $newest_versions.
newer_symbols() {
    readelf --wide --dyn-syms "$1" | sed -n 's/.* UND \([^ @]*\)@\([A-Z]*_[0-9.]*\) .*/\1 \2/p' | while read -r symbol version; do
        for newest in $newest_versions; do
            if [ "${newest%_*}" = "${version%_*}" ] && [ "$(printf '%s\n' "$newest" "$version" | sort -V | tail -n 1)" != "$newest" ]; then
                echo "  $(basename "$1"): $symbol ($version)"
            fi
        done
    done
}

# libgomp is the system's, as for MXNet, which has its threads
PATH="$(dirname "$python"):$PATH" "$python" -m auditwheel repair --exclude libgomp.so.1 --wheel-dir "$work/repaired" "$work"/wheel/*.whl >"$work/log" 2>&1 ||
    { cat "$work/log" >&2 && fail 'auditwheel refused the wheel'; }
wheel=$(basename "$work"/repaired/*.whl)
found=${wheel##*manylinux_2_}
if [ "${found%%_*}" -gt "$glibc" ]; then
    "$python" -m zipfile --extract "$work"/wheel/*.whl "$work/unpacked"
    for library in "$work"/unpacked/bmx_melius/*.so; do newer_symbols "$library" >&2; done
    fail "the wheel is $wheel, but must be for manylinux_2_$glibc or older: avoid the symbols above (docs/internals/releasing.md)"
fi

mkdir -p "$dist"
rm -f "$dist"/*_"$machine".whl
mv "$work"/repaired/*_"$machine".whl "$dist"
ls "$dist"/*_"$machine".whl
if [ "$machine" = "$(uname -m)" ]; then
    rm -f "$dist"/*.tar.gz
    mv "$work"/*.tar.gz "$dist"
    ls "$dist"/*.tar.gz
fi
