# Helpers that give every target of the project the same flags.

find_program(KF_CCACHE ccache)
if(KF_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${KF_CCACHE})
endif()

add_library(kf_warnings INTERFACE)
set(_common -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion
    -Wold-style-cast -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align
    -Wextra-semi -Wdouble-promotion -Wformat=2 -Wimplicit-fallthrough)
target_compile_options(kf_warnings INTERFACE
  "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:${_common};-Wlogical-op;-Wduplicated-cond;-Wduplicated-branches;-Wuseless-cast>"
  "$<$<COMPILE_LANG_AND_ID:CXX,Clang>:${_common};-Wthread-safety;-Wthread-safety-beta;-Wunreachable-code-aggressive>")
if(KF_UNITY)
  # An Impl with members from its file's anonymous namespace is no fault of a
  # file that is compiled as part of another.
  target_compile_options(kf_warnings INTERFACE
    "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>")
endif()
if(KF_WERROR)
  # False alarms of gcc 12 by reputation stay warnings.
  target_compile_options(kf_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Werror>
    "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-error=restrict;-Wno-error=maybe-uninitialized;-Wno-error=stringop-overflow;-Wno-error=array-bounds>")
endif()

if(KF_SANITIZE)
  add_compile_options(-fsanitize=${KF_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${KF_SANITIZE})
endif()

# kf_library(NAME SRCS ... [PUBLIC libs...] [PRIVATE libs...])
function(kf_library name)
  cmake_parse_arguments(A "" "" "SRCS;PUBLIC;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${A_SRCS})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${A_PUBLIC} PRIVATE kf_warnings ${A_PRIVATE})
endfunction()

# kf_binary(NAME SRCS ... LINK ...): a program in <build>/bin.
function(kf_binary name)
  cmake_parse_arguments(A "" "" "SRCS;LINK" ${ARGN})
  add_executable(${name} ${A_SRCS})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE kf_warnings ${A_LINK})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
endfunction()

# kf_test(NAME SRCS ... LINK ... LABELS ... [TIMEOUT s]): one gtest binary, one ctest entry.
function(kf_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "SRCS;LINK;LABELS" ${ARGN})
  if(NOT KF_BUILD_TESTS)
    return()
  endif()
  add_executable(${name} ${A_SRCS})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE kf_warnings ${A_LINK} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE KF_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${A_LABELS}" TIMEOUT ${A_TIMEOUT})
endfunction()

# kf_fuzz(NAME SRCS ... LINK ... CORPUS dir): libFuzzer target; elsewhere a
# replay of its corpus is an ordinary test (tests/fuzz/replay_main.cc).
function(kf_fuzz name)
  cmake_parse_arguments(A "" "CORPUS" "SRCS;LINK" ${ARGN})
  if(KF_BUILD_FUZZ)
    add_executable(${name} ${A_SRCS})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer-no-link)
  elseif(KF_BUILD_TESTS)
    add_executable(${name} ${A_SRCS} ${CMAKE_SOURCE_DIR}/tests/fuzz/replay_main.cc)
    add_test(NAME ${name}_replay COMMAND ${name} ${A_CORPUS})
    set_tests_properties(${name}_replay PROPERTIES LABELS "fuzz" TIMEOUT 120)
  else()
    return()
  endif()
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE kf_warnings ${A_LINK})
endfunction()
