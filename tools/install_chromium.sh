#!/usr/bin/env bash
# Install Chromium and its driver by apt-get if they are missing and this is root; otherwise name them and fail.
set -euo pipefail

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
    echo "error: tests in a browser need packages that are not installed (on Debian: apt-get install ${packages[*]})" >&2
    exit 1
fi
