#!/bin/sh
# make_venv.sh FOLDER FILE...: create the virtual environment FOLDER, unless there is one that is newer than the files: the pinned packages,
# then this project, editable. Called by the Makefile. FOLDER/.ready is removed first and written last, so that an interrupted set-up is
# detected. FOLDER.lock is locked meanwhile: of two commands started at once the second one waits, and finds the environment ready.
# Each step is a line on standard error; where nothing is to be done there is no output.
# Environment variable PYTHON: the interpreter to use (default: the newest supported one in PATH that works).
set -eu

folder=$1
shift

fail() {
    echo "error: $1" >&2
    exit 1
}

supported='import sys; sys.exit(not (3, 8) <= sys.version_info[:2] <= (3, 11))'
identity='import sys; print(sys.version)'
version='import platform; print(platform.python_version())'

# Run each candidate: version managers leave launchers in PATH that fail when they are run.
find_python() {
    python=
    found=
    without_venv=
    for candidate in "$@"; do
        if ! found_version=$("$candidate" -c "$version" 2>/dev/null); then
            continue
        elif ! "$candidate" -c "$supported"; then
            found="${found:+$found, }$candidate is Python $found_version"
        elif ! "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            without_venv=${without_venv:-$candidate}
        else
            python=$candidate
            return
        fi
    done
}

if [ -n "${PYTHON:-}" ]; then
    find_python "$PYTHON"
else
    find_python python3.11 python3.10 python3.9 python3.8 python3 python
fi
if [ -z "$python" ] && [ -n "$without_venv" ]; then
    fail "$without_venv cannot make virtual environments; on Debian and Ubuntu: apt-get install $("$without_venv" -c \
        'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
elif [ -z "$python" ]; then
    fail "Python 3.8, 3.9, 3.10 or 3.11 is needed, because MXNet 1.9.1 supports no other (${found:-no working ${PYTHON:-python3} found});\
 name one: make PYTHON=/path/to/python3.11"
fi

# The lock ends with this process and its children, however they end. Without flock, which every usual Linux has, there is none.
if command -v flock >/dev/null; then
    exec 9>"$folder.lock"
    flock --nonblock 9 || { echo "Waiting for another command that sets up $folder ..." >&2 && flock 9; }
fi
if [ -e "$folder/.ready" ] && [ -z "$(find "$@" -prune -newer "$folder/.ready")" ] &&
    [ "$("$folder/bin/python" -c "$identity" 2>/dev/null)" = "$("$python" -c "$identity")" ]; then
    exit
fi

# Making an environment empties its folder, which other checkouts may use as well if it is a link.
[ ! -L "$folder" ] || fail "$folder is a link to $(readlink "$folder"), whose environment is not ready; set it up where it is, or remove the link"

echo "Setting up $folder with Python $("$python" -c "$version"), once; this takes a few minutes ..." >&2
rm -f "$folder"/.ready*
step() {
    echo "  $1 of 4: $2 ..." >&2
}
step 1 'creating the virtual environment'
"$python" -m venv --clear "$folder"
pip() {
    "$folder/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps "$@" ||
        fail 'pip could not install the packages (its messages are above); a second run starts the set-up anew'
}
packages=$(grep '^[A-Za-z]' requirements/tests.txt | cut -d= -f1 | sort -u | wc -l)
step 2 "downloading and installing up to $((packages)) packages, which takes most of the time"
pip --requirement requirements/tests.txt
step 3 'compiling the engine and installing this project'
pip --no-build-isolation --editable .
step 4 'importing MXNet'
if ! message=$("$folder/bin/python" -W ignore -c 'import mxnet' 2>&1); then
    case $message in
        *libgomp* | *libquadmath*)
            fail 'MXNet needs two libraries of the compiler; on Debian and Ubuntu: apt-get install libgomp1 libquadmath0' ;;
        *) fail "MXNet cannot be imported: $(echo "$message" | tail -n 1)" ;;
    esac
fi
touch "$folder/.ready"
