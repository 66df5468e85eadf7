# Debian packages, one for each install component: `cpack` in a build folder that was configured with the preset
# `package`, or tools/packages, which does all of it and looks at the result.
if(NOT CMAKE_INSTALL_PREFIX STREQUAL "/usr" OR GOSSAMER_SANITIZE)
  return()
endif()

# Manual pages, of what the programs built here say of themselves.
set(manual ${CMAKE_BINARY_DIR}/manual)
set(pages gossamerd.8 gossamerctl.1 gossamer-bench.1 gossamer-sim.1 gossamer.toml.5)
list(TRANSFORM pages PREPEND ${manual}/ OUTPUT_VARIABLE page_files)
add_custom_command(OUTPUT ${page_files}
  DEPENDS ${CMAKE_CURRENT_LIST_DIR}/manual.py gossamerd gossamerctl gossamer-bench gossamer-sim
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/manual.py ${manual} $<TARGET_FILE:gossamerd>
    $<TARGET_FILE:gossamerctl> $<TARGET_FILE:gossamer-bench> $<TARGET_FILE:gossamer-sim>
    -- ${CMAKE_CROSSCOMPILING_EMULATOR}
  # Without a time in it, the same input gives the same package.
  COMMAND gzip --best --no-name --force --keep ${page_files}
  VERBATIM)
add_custom_target(gossamer_manual ALL DEPENDS ${page_files})
foreach(page IN LISTS page_files)
  string(REGEX REPLACE ".*\\." "" section ${page})
  install(FILES ${page}.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section} COMPONENT gossamer)
endforeach()
foreach(program gossamerd gossamerctl gossamer-sim gossamer-bench)
  install(FILES ${CMAKE_CURRENT_LIST_DIR}/completion.bash
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME ${program} COMPONENT gossamer)
endforeach()

set(components gossamer libgossamer1 libgossamer-dev python3-gossamer)
if(GOSSAMER_CUDA_FOUND)
  list(APPEND components gossamer-cuda)
endif()
file(READ ${CMAKE_SOURCE_DIR}/tools/packaging/changelog changelog)
string(REGEX MATCH "^gossamer \\(([^)]+)\\)" _ "${changelog}")
set(package_version ${CMAKE_MATCH_1})
if(NOT package_version MATCHES "^${PROJECT_VERSION}-")
  message(FATAL_ERROR "tools/packaging/changelog begins with version ${package_version}, not ${PROJECT_VERSION}-…")
endif()
# Each package brings its licence and changes. Of the others than the first one these are the same.
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/package-doc)
execute_process(
  COMMAND gzip --best --no-name --stdout ${CMAKE_SOURCE_DIR}/tools/packaging/changelog
  OUTPUT_FILE ${CMAKE_BINARY_DIR}/package-doc/changelog.Debian.gz
  COMMAND_ERROR_IS_FATAL ANY)
foreach(component IN LISTS components)
  install(FILES ${CMAKE_BINARY_DIR}/package-doc/changelog.Debian.gz ${CMAKE_SOURCE_DIR}/tools/packaging/copyright
    DESTINATION share/doc/${component} COMPONENT ${component})
endforeach()
# The book. What one package's reader looks for stands beside that package as well.
install(FILES README.md DESTINATION share/doc/gossamer COMPONENT gossamer)
install(DIRECTORY docs DESTINATION share/doc/gossamer COMPONENT gossamer)
if(GOSSAMER_CUDA_FOUND)
  install(FILES docs/how-to/gpu.md DESTINATION share/doc/gossamer-cuda COMPONENT gossamer-cuda)
endif()
install(FILES docs/reference/c-api.md docs/reference/shared-memory.md
  DESTINATION share/doc/libgossamer-dev COMPONENT libgossamer-dev)
install(FILES docs/how-to/train-in-python.md docs/how-to/resume-and-finish.md docs/reference/python.md
  DESTINATION share/doc/python3-gossamer COMPONENT python3-gossamer)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME gossamer)
string(REGEX REPLACE ".*-" "" release ${package_version})
set(CPACK_DEBIAN_PACKAGE_RELEASE ${release})
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "Gossamer maintainers <maintainers@gossamer.invalid>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # each component has its own
set(CPACK_SET_DESTDIR ON)  # /etc is not below the prefix
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL ${components})
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS OFF)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
# Libraries of another processor are not where this system has its own.
if(CMAKE_CROSSCOMPILING)
  list(APPEND CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS
    ${CMAKE_SYSROOT}/lib/${CMAKE_LIBRARY_ARCHITECTURE} ${CMAKE_SYSROOT}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE})
endif()
set(same_version "(= ${package_version})")
set(scripts ${CMAKE_SOURCE_DIR}/tools/packaging)
# The first line of a description is the synopsis.

set(CPACK_COMPONENT_GOSSAMER_DESCRIPTION "decentralized gossip-SGD peer daemon
Machines that train one model average it with their neighbours, two at a
time, while training goes on: no server, no fixed number of workers, no
step that waits for the network.

This package has the daemon, the tool that asks it and tells it what to do,
a simulator of its decisions, and benchmarks.")
set(CPACK_DEBIAN_GOSSAMER_PACKAGE_NAME gossamer)
set(CPACK_DEBIAN_GOSSAMER_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_GOSSAMER_PACKAGE_DEPENDS "libgossamer1 ${same_version}, adduser, init-system-helpers (>= 1.54)")
set(CPACK_DEBIAN_GOSSAMER_PACKAGE_SUGGESTS "python3-gossamer")
set(CPACK_DEBIAN_GOSSAMER_PACKAGE_CONTROL_EXTRA
  ${scripts}/postinst ${scripts}/prerm ${scripts}/postrm ${scripts}/conffiles)

set(CPACK_COMPONENT_LIBGOSSAMER1_DESCRIPTION "client library of the Gossamer daemon
Connects a training process to the Gossamer daemon of its machine over
shared memory. A training step never waits for the network.")
set(CPACK_DEBIAN_LIBGOSSAMER1_PACKAGE_NAME libgossamer1)
set(CPACK_DEBIAN_LIBGOSSAMER1_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBGOSSAMER1_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_LIBGOSSAMER1_PACKAGE_CONTROL_EXTRA "${scripts}/triggers;${scripts}/shlibs")

set(CPACK_COMPONENT_LIBGOSSAMER-DEV_DESCRIPTION "client library of the Gossamer daemon, to build with
Headers for C and C++, and what pkg-config and CMake need to find them.")
set(CPACK_DEBIAN_LIBGOSSAMER-DEV_PACKAGE_NAME libgossamer-dev)
set(CPACK_DEBIAN_LIBGOSSAMER-DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBGOSSAMER-DEV_PACKAGE_DEPENDS "libgossamer1 ${same_version}")

set(CPACK_COMPONENT_PYTHON3-GOSSAMER_DESCRIPTION "client library of the Gossamer daemon for Python
Attaches models of PyTorch, JAX and NumPy to the Gossamer daemon of their
machine.")
set(CPACK_DEBIAN_PYTHON3-GOSSAMER_PACKAGE_NAME python3-gossamer)
set(CPACK_DEBIAN_PYTHON3-GOSSAMER_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PYTHON3-GOSSAMER_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PYTHON3-GOSSAMER_PACKAGE_DEPENDS "python3, libgossamer1 (>= ${package_version}), python3-numpy")
set(CPACK_DEBIAN_PYTHON3-GOSSAMER_PACKAGE_SUGGESTS "python3-torch")

# The driver brings libcuda; nothing is linked against it, so that the package can be installed before the driver is.
set(CPACK_COMPONENT_GOSSAMER-CUDA_DESCRIPTION "NVIDIA GPUs for Gossamer
With this, models in a GPU's memory are exchanged from there: the daemon
computes on the GPU, and only compressed values cross the bus. It needs
NVIDIA's driver, and NCCL where a machine trains with several GPUs.")
set(CPACK_DEBIAN_GOSSAMER-CUDA_PACKAGE_NAME gossamer-cuda)
set(CPACK_DEBIAN_GOSSAMER-CUDA_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_GOSSAMER-CUDA_PACKAGE_DEPENDS "libgossamer1 ${same_version}")
set(CPACK_DEBIAN_GOSSAMER-CUDA_PACKAGE_ENHANCES "gossamer, libgossamer1")
set(CPACK_DEBIAN_GOSSAMER-CUDA_PACKAGE_BREAKS "gossamer (<< ${package_version}), gossamer (>> ${package_version})")
set(CPACK_DEBIAN_GOSSAMER-CUDA_PACKAGE_SUGGESTS "libcuda1, libnccl2")
include(CPack)
