# Decides whether the plug-in for NVIDIA GPUs is built: GOSSAMER_CUDA_FOUND. The plug-in is a library that is loaded at
# run time, so nothing else here depends on the answer.
set(GOSSAMER_CUDA_FOUND FALSE)
if(NOT GOSSAMER_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "GOSSAMER_CUDA is ${GOSSAMER_CUDA}: it may be AUTO, ON or OFF")
endif()
# Off by default in these two cases: the sanitizers do not see into it, and the client library has no use for it.
if(GOSSAMER_CUDA STREQUAL "OFF" OR GOSSAMER_CLIENT_ONLY OR (GOSSAMER_SANITIZE AND GOSSAMER_CUDA STREQUAL "AUTO"))
  return()
endif()

# This comes before the compiler is tried, whose own default may be a GPU that it no longer knows.
if(NOT GOSSAMER_CUDA_ARCHITECTURES STREQUAL "all")
  set(CMAKE_CUDA_ARCHITECTURES ${GOSSAMER_CUDA_ARCHITECTURES})
else()
  set(CMAKE_CUDA_ARCHITECTURES 75)
endif()
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(GOSSAMER_CUDA STREQUAL "ON")
    message(FATAL_ERROR "GOSSAMER_CUDA is ON, and there is no CUDA compiler that works: install the CUDA toolkit and put "
      "nvcc on the PATH, or name it with -DCMAKE_CUDA_COMPILER=/usr/local/cuda/bin/nvcc")
  endif()
  message(STATUS "No CUDA compiler: the plug-in for GPUs is not built")
  return()
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

# Compiles for every GPU from Turing (75) on that the toolkit knows; later GPUs translate the code for the newest.
if(GOSSAMER_CUDA_ARCHITECTURES STREQUAL "all")
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch OUTPUT_VARIABLE known COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[0-9]+" known "${known}")
  list(SORT known COMPARE NATURAL)
  set(CMAKE_CUDA_ARCHITECTURES "")
  foreach(architecture IN LISTS known)
    if(architecture GREATER_EQUAL 75)
      list(APPEND CMAKE_CUDA_ARCHITECTURES ${architecture}-real)
      set(newest ${architecture})
    endif()
  endforeach()
  list(APPEND CMAKE_CUDA_ARCHITECTURES ${newest}-virtual)
endif()

find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
set(GOSSAMER_CUDA_FOUND TRUE)
if(NCCL_INCLUDE_DIR)
  set(with_nccl "with NCCL")
else()
  set(with_nccl "without NCCL")
endif()
message(STATUS "The plug-in for GPUs: CUDA ${CUDAToolkit_VERSION}, ${with_nccl}, for ${CMAKE_CUDA_ARCHITECTURES}")

# Makes a plug-in that is loaded at run time. It contains the CUDA runtime, so that only the driver must be there.
# Kernels do not contract into fused multiply-add, so integers and sums are the same as everywhere else.
function(gossamer_cuda_plugin name)
  add_library(${name} MODULE ${ARGN})
  set_target_properties(${name} PROPERTIES
    CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_RUNTIME_LIBRARY Static
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_include_directories(${name} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  set(host_warnings -Wall -Wextra)
  if(GOSSAMER_WERROR)
    list(APPEND host_warnings -Werror)
    target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings>")
  endif()
  list(JOIN host_warnings "," host_warnings_for_nvcc)
  target_compile_options(${name} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${host_warnings}>"
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-fmad=false -ftz=false -prec-div=true -Xcompiler=${host_warnings_for_nvcc}>")
  target_link_options(${name} PRIVATE LINKER:--no-undefined LINKER:--exclude-libs,ALL)
  target_link_libraries(${name} PRIVATE ${CMAKE_DL_LIBS})
  install(TARGETS ${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/gossamer COMPONENT gossamer-cuda)
endfunction()
