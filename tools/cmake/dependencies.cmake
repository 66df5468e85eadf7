# All dependencies are packages of the distribution; tools/lib/setup.sh lists and installs them.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
if(GOSSAMER_GPU_CHECK_ONLY)
  find_package(fmt CONFIG REQUIRED)
  pkg_check_modules(libhwy REQUIRED IMPORTED_TARGET libhwy)
  return()
endif()
pkg_check_modules(libxxhash REQUIRED IMPORTED_TARGET libxxhash)
# Tests and tools use the system's Python, which sees the distribution's NumPy.
if(NOT DEFINED Python3_EXECUTABLE)
  set(Python3_EXECUTABLE /usr/bin/python3)
endif()
find_package(Python3 REQUIRED COMPONENTS Interpreter)
if(GOSSAMER_CLIENT_ONLY)
  return()
endif()

find_package(CapnProto CONFIG REQUIRED)
find_package(fmt CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(tomlplusplus CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(ZLIB REQUIRED)
# The targets of cppzmq and of pkg-config are not used: they list the include folders of libzmq's own dependencies, in
# another order each time CMake runs, and everything would be built again.
pkg_check_modules(libzmq REQUIRED libzmq)
find_path(CPPZMQ_INCLUDE_DIR zmq.hpp REQUIRED)
add_library(gossamer_zmq INTERFACE)
target_include_directories(gossamer_zmq SYSTEM INTERFACE ${CPPZMQ_INCLUDE_DIR})
target_link_libraries(gossamer_zmq INTERFACE ${libzmq_LINK_LIBRARIES})
pkg_check_modules(libsodium REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(libcrypto REQUIRED IMPORTED_TARGET libcrypto)
pkg_check_modules(libsystemd REQUIRED IMPORTED_TARGET libsystemd)
pkg_check_modules(libhwy REQUIRED IMPORTED_TARGET libhwy)

find_path(ASIO_INCLUDE_DIR asio.hpp REQUIRED)
add_library(gossamer_asio INTERFACE)
target_include_directories(gossamer_asio SYSTEM INTERFACE ${ASIO_INCLUDE_DIR})
# This comes last: Asio 1.22 otherwise picks its allocator by what a file happens to include before it, and the two
# kinds do not mix.
target_compile_definitions(gossamer_asio INTERFACE ASIO_STANDALONE ASIO_NO_DEPRECATED ASIO_HAS_STD_ALIGNED_ALLOC)
target_link_libraries(gossamer_asio INTERFACE Threads::Threads)

if(GOSSAMER_TESTS)
  find_package(Catch2 CONFIG REQUIRED)
endif()
