# The CUDA sources, compiled two ways: by nvcc, and for the host with the
# emulator of tests/cuda/emulation, in up to three builds (docs/emulation.md).

set(KF_CUDA AUTO CACHE STRING "Compile the CUDA backend: ON, OFF, AUTO (where nvcc is)")
set_property(CACHE KF_CUDA PROPERTY STRINGS AUTO ON OFF)

find_program(KF_NVCC nvcc PATHS /usr/local/cuda/bin)
set(kf_cuda_wanted ${KF_CUDA})
if(KF_CUDA STREQUAL "AUTO")
  set(kf_cuda_wanted ${KF_NVCC})  # not found counts as false
endif()
if(kf_cuda_wanted)
  set(KF_WITH_CUDA TRUE)
  if(KF_NVCC)
    set(CMAKE_CUDA_COMPILER ${KF_NVCC} CACHE FILEPATH "")
  endif()
  # SASS for A100 and H100/H200, PTX for what comes after.
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual CACHE STRING "")
  enable_language(CUDA)
  # For CUDA::cudart_static. CMake 3.25's module fails where the toolkit lacks
  # nvToolsExt, as that of 13 does, for a project that asks for 3.25.
  block(SCOPE_FOR VARIABLES)
    set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
    find_package(CUDAToolkit REQUIRED)
  endblock()
  set(CMAKE_CUDA_STANDARD 20)
  # CMake 3.25 does not know that nvcc 13 has it.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  if(KF_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${KF_CCACHE})
  endif()
else()
  set(KF_WITH_CUDA FALSE)
endif()
message(STATUS "CUDA backend: ${KF_WITH_CUDA}")

# For device code: constexpr functions of shared headers may be called there.
# A spill or a local array is worth a warning anywhere, and is an error with
# KF_WERROR: another nvcc than ours may well spill.
set(kf_ptxas_flags --warn-on-spills,--warn-on-local-memory-usage)
if(KF_WERROR)
  string(APPEND kf_ptxas_flags ,-Werror)
endif()
# What is carried elsewhere is to be small: a twelfth of what lines make it.
set(kf_nvcc_size_flags -lineinfo)
if(KF_STATIC)
  set(kf_nvcc_size_flags --compress-mode=size)
endif()
add_library(kf_nvcc_flags INTERFACE)
target_compile_options(kf_nvcc_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;${kf_nvcc_size_flags};-Xptxas=${kf_ptxas_flags};-Xcompiler=-Wall>")

# kf_add_cuda_sources([DEVICE a.cu ...] [HOST b.cc ...] [PUBLIC libs...] [PRIVATE
# libs...]): the library kf_cuda where nvcc is; the emulated builds, which
# tests/cuda/emulation makes, take the same list. Call it once.
function(kf_add_cuda_sources)
  cmake_parse_arguments(A "" "" "DEVICE;HOST;PUBLIC;PRIVATE" ${ARGN})
  set(sources ${A_DEVICE} ${A_HOST})
  list(TRANSFORM sources PREPEND kernels/cuda/)
  set_property(GLOBAL PROPERTY KF_CUDA_SOURCES ${sources})
  set_property(GLOBAL PROPERTY KF_CUDA_PUBLIC ${A_PUBLIC})
  set_property(GLOBAL PROPERTY KF_CUDA_PRIVATE ${A_PRIVATE})
  if(KF_WITH_CUDA)
    kf_library(kf_cuda SRCS ${A_DEVICE} ${A_HOST}
      PUBLIC ${A_PUBLIC} CUDA::cudart_static PRIVATE ${A_PRIVATE} kf_nvcc_flags)
    # One kernel a file: nothing is to be gained from their being joined.
    set_target_properties(kf_cuda PROPERTIES UNITY_BUILD OFF LINKER_LANGUAGE CXX)
  endif()
endfunction()

set(KF_EMULATED_BUILDS "plain;asan;check" CACHE STRING
    "Builds of the emulated CUDA tests: plain, asan, check")
# The emulated builds of this configuration. Those of gcc have an asan build of
# their own: a sanitized configuration would only build it again.
if(KF_SANITIZE)
  set(KF_EMULATED_MODES)
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(KF_EMULATED_MODES ${KF_EMULATED_BUILDS})
else()
  # For clang-tidy. clang's thread hooks would need flags of their own.
  set(KF_EMULATED_MODES plain)
endif()

set(KF_EMULATED_FLAGS_plain -O2)
# The sanitizers of the whole configuration, if it has them, come first.
set(KF_EMULATED_FLAGS_asan -O1 -fsanitize=address,undefined
    -fno-sanitize-recover=all -fno-omit-frame-pointer)
# gcc's thread pass cuts a uint4 into words, which hides misalignment. DWARF
# 4: in 5, addr2line 2.40 gives some places the wrong file.
set(KF_EMULATED_FLAGS_check -O1 -g -gdwarf-4 -fsanitize=thread,alignment,bounds
    -fno-sanitize-recover=all -fno-omit-frame-pointer)
set(KF_EMULATED_LINK_plain)
set(KF_EMULATED_LINK_asan -fsanitize=address,undefined)
# Not `thread`: the hooks are ours, not libtsan's.
set(KF_EMULATED_LINK_check -fsanitize=undefined)

# What emulated code is compiled with. Kernels keep CUDA's habits with signs.
set(KF_EMULATED_WARNINGS -Wall -Wextra -Wshadow -Wdouble-promotion
    -Wimplicit-fallthrough -Wno-unknown-pragmas)
if(KF_WERROR)
  list(APPEND KF_EMULATED_WARNINGS -Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND KF_EMULATED_WARNINGS -Wno-error=maybe-uninitialized
         -Wno-error=array-bounds -Wno-error=stringop-overflow)
  else()
    # Of `#pragma unroll`, which is meant for nvcc.
    list(APPEND KF_EMULATED_WARNINGS -Wno-pass-failed)
  endif()
endif()

# kf_as_cxx(VAR sources...): each a.cu (relative to the project) as a C++ file
# that includes it, for a source has one language in a folder.
function(kf_as_cxx out)
  set(result)
  foreach(source IN LISTS ARGN)
    if(source MATCHES "[.]cu$")
      set(wrapper ${CMAKE_CURRENT_BINARY_DIR}/emulated/${source}.cc)
      file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"${source}\"\n" @ONLY)
      list(APPEND result ${wrapper})
    else()
      list(APPEND result ${CMAKE_SOURCE_DIR}/${source})
    endif()
  endforeach()
  set(${out} ${result} PARENT_SCOPE)
endfunction()

# Makes `target` one that is compiled and linked as emulated code of `mode`.
function(kf_emulate target mode)
  target_include_directories(${target} PUBLIC
    ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/tests/cuda/emulation)
  target_compile_definitions(${target} PUBLIC KF_CUDA_EMULATION)
  target_compile_options(${target} PRIVATE
    -g1 ${KF_EMULATED_FLAGS_${mode}} ${KF_EMULATED_WARNINGS})
  target_link_options(${target} PUBLIC ${KF_EMULATED_LINK_${mode}})
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
endfunction()

# kf_add_emulated_test(NAME SRCS a.cc b.cu ... [LINK libs...] [TIMEOUT s]
# [MODES ...] [EMULATED_ONLY] [ENGINE]): the sources as NAME_plain (run in both
# orders of its threads), NAME_asan, NAME_check, or those of MODES alone, linked
# with the emulated backend; ctest label cuda-emulation. With CUDA also NAME_gpu, label gpu, in <build>/gpu: the same on
# a real device. EMULATED_ONLY is for tests of the emulator itself: without a
# backend, and no NAME_gpu. ENGINE is for tests that link the engine: with CUDA
# it brings the real backend, so that there is only NAME_gpu. Sources find the mode in KF_EMULATED_MODE ("plain", ..., "gpu").
function(kf_add_emulated_test name)
  cmake_parse_arguments(A "EMULATED_ONLY;ENGINE" "TIMEOUT" "SRCS;LINK;MODES" ${ARGN})
  if(NOT KF_BUILD_TESTS)
    return()
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  list(TRANSFORM A_SRCS PREPEND ${folder}/ OUTPUT_VARIABLE sources)
  kf_as_cxx(sources ${sources})
  set(backend kf_cuda)
  if(A_EMULATED_ONLY)
    set(backend kf_emulator)
    list(APPEND sources ${CMAKE_SOURCE_DIR}/kernels/cuda/gpu_api.cc)
  endif()
  set(modes ${KF_EMULATED_MODES})
  if(A_MODES)
    string(REPLACE ";" "|" wanted "${A_MODES}")
    list(FILTER modes INCLUDE REGEX "^(${wanted})$")
  endif()
  if(A_ENGINE AND KF_WITH_CUDA)
    set(modes)
  endif()
  foreach(mode IN LISTS modes)
    set(target ${name}_${mode})
    add_executable(${target} ${sources})
    kf_emulate(${target} ${mode})
    target_compile_definitions(${target} PRIVATE
      KF_EMULATED_MODE="${mode}" KF_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    target_link_libraries(${target} PRIVATE
      ${backend}_${mode} ${A_LINK} GTest::gmock GTest::gtest_main)
    add_test(NAME ${target} COMMAND ${target})
    set(tests ${target})
    if(mode STREQUAL "plain")
      add_test(NAME ${target}_backward COMMAND ${target})
      set_tests_properties(${target}_backward PROPERTIES
        ENVIRONMENT KF_EMULATION_ORDER=backward)
      list(APPEND tests ${target}_backward)
    endif()
    set_tests_properties(${tests} PROPERTIES
      LABELS cuda-emulation TIMEOUT ${A_TIMEOUT})
  endforeach()
  if(KF_WITH_CUDA AND NOT A_EMULATED_ONLY)
    add_executable(${name}_gpu ${A_SRCS})
    target_compile_definitions(${name}_gpu PRIVATE
      KF_EMULATED_MODE="gpu" KF_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    target_link_libraries(${name}_gpu PRIVATE
      kf_cuda kf_nvcc_flags ${A_LINK} GTest::gmock GTest::gtest_main)
    set_target_properties(${name}_gpu PROPERTIES UNITY_BUILD OFF
      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/gpu)
    set_property(GLOBAL APPEND PROPERTY KF_GPU_PROGRAMS ${name}_gpu)
    add_test(NAME ${name}_gpu COMMAND ${name}_gpu)
    set_tests_properties(${name}_gpu PROPERTIES
      LABELS gpu TIMEOUT ${A_TIMEOUT})
  endif()
endfunction()
