# Toolchain for Android on 64-bit ARM: the NDK's, whose folder is given by -DANDROID_NDK or the environment variable
# ANDROID_NDK_HOME. The C++ library is linked statically into libbmx_melius, so that it is the only file an app needs.

if(NOT ANDROID_NDK)
  set(ANDROID_NDK $ENV{ANDROID_NDK_HOME})
endif()
if(NOT EXISTS "${ANDROID_NDK}/build/cmake/android.toolchain.cmake")
  message(FATAL_ERROR "there is no Android NDK in '${ANDROID_NDK}': pass -DANDROID_NDK=FOLDER or set ANDROID_NDK_HOME")
endif()

if(NOT ANDROID_ABI)
  set(ANDROID_ABI arm64-v8a)
endif()
if(NOT ANDROID_PLATFORM)
  set(ANDROID_PLATFORM android-24)
endif()
set(ANDROID_STL c++_static)
include("${ANDROID_NDK}/build/cmake/android.toolchain.cmake")

# CMake reads this file again where it tests the compiler; the toolchain of the NDK sets the list of variables that are kept for that.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ANDROID_NDK)
