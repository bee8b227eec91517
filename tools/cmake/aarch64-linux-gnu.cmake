# Toolchain for 64-bit ARM boards with Linux, with the cross compiler of Debian and Ubuntu: apt-get install g++-aarch64-linux-gnu

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

# Libraries and headers of the target are in the folders of its architecture (apt-get install libjpeg-dev:arm64), or below a folder that
# -DCMAKE_SYSROOT=FOLDER names; programs that run during the build belong to this machine.
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
