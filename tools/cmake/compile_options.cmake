# One interface target carries the compile options of all our targets.
add_library(gossamer_options INTERFACE)
target_include_directories(gossamer_options INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
target_compile_options(gossamer_options INTERFACE -Wall -Wextra $<$<BOOL:${GOSSAMER_WERROR}>:-Werror>)

# The codec must give the same integers and sums on every machine, so there is no contraction into FMA. The other two
# flags only let loops with floor, round and compare vectorise; nothing here reads errno or the floating-point exception
# flags.
target_compile_options(gossamer_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off -fno-math-errno -fno-trapping-math>)

# In a unity build a source is an included file, and GCC takes the types of its anonymous namespace for ones that two
# sources could know differently.
if(CMAKE_UNITY_BUILD)
  add_compile_options($<$<AND:$<CXX_COMPILER_ID:GNU>,$<COMPILE_LANGUAGE:CXX>>:-Wno-subobject-linkage>)
endif()

# Where there is memory for it, GCC looks for garbage in its own memory less often: a sixth of its time.
cmake_host_system_information(RESULT memory_mib QUERY TOTAL_PHYSICAL_MEMORY)
if(memory_mib GREATER 12000)
  add_compile_options($<$<AND:$<CXX_COMPILER_ID:GNU>,$<COMPILE_LANGUAGE:CXX>>:--param=ggc-min-heapsize=1048576>)
endif()

# clang takes the deprecation of what libstdc++'s own algorithms use for ours, and wants braces that a base class may do
# without.
target_compile_options(gossamer_options INTERFACE
  $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations -Wno-missing-braces>)

if(GOSSAMER_SANITIZE)
  target_compile_options(gossamer_options INTERFACE -fsanitize=${GOSSAMER_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  # What an input reaches is counted, so that libFuzzer can look for more. The standard library checks how it is used.
  if(GOSSAMER_FUZZ)
    target_compile_options(gossamer_options INTERFACE -fsanitize=fuzzer-no-link)
    target_compile_definitions(gossamer_options INTERFACE _GLIBCXX_ASSERTIONS)
  endif()
  # As GCC says it by itself.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    string(REGEX REPLACE ",.*" "" first_sanitizer "${GOSSAMER_SANITIZE}")
    string(TOUPPER "__SANITIZE_${first_sanitizer}__" sanitizer_definition)
    target_compile_definitions(gossamer_options INTERFACE ${sanitizer_definition})
  endif()
  # Under a sanitizer each of Highway's targets takes long to compile, so most are left out. The build without sanitizers
  # tests them all.
  target_compile_definitions(gossamer_options INTERFACE
    "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4|HWY_AVX3|HWY_AVX3_DL)")
  # The vptr check needs a descriptor to look at memory, and mistakes a lack of descriptors for a wrong object.
  if(GOSSAMER_SANITIZE MATCHES "undefined")
    target_compile_options(gossamer_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=vptr>)
    # These two checks together nearly double the time to compile. They are off in tools and tests, which read nothing
    # in place. (The address sanitizer also ends a program at a null pointer.)
    target_compile_options(gossamer_options INTERFACE
      "$<$<BOOL:$<FILTER:$<TARGET_PROPERTY:SOURCE_DIR>,INCLUDE,^${CMAKE_SOURCE_DIR}/(tools|tests)>>:-fno-sanitize=null,alignment>")
  endif()
  target_link_options(gossamer_options INTERFACE -fsanitize=${GOSSAMER_SANITIZE})
  # GCC gives false alarms here: it loses track of initialisations among the checks, and warns of Asio's fences.
  target_compile_options(gossamer_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  if(GOSSAMER_SANITIZE STREQUAL "thread")
    target_compile_options(gossamer_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  endif()
endif()
