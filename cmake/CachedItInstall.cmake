# cmake --install: the library, its headers, the command line, the shipped model, and the package files
# that find_package(cachedit) reads.
include(CMakePackageConfigHelpers)

# LibTorch's folder comes first: its libgomp must be the one that loads, since a second OpenMP runtime
# in the process means two thread pools on the same cores. The same order holds in the build tree.
set(CACHEDIT_TORCH_LIB_DIR "${TORCH_INSTALL_PREFIX}/lib")

set_target_properties(cachedit PROPERTIES INSTALL_RPATH "${CACHEDIT_TORCH_LIB_DIR};$ORIGIN")
if(TARGET cachedit-cli)
  file(RELATIVE_PATH lib_from_bin "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
  set_target_properties(cachedit-cli PROPERTIES
    INSTALL_RPATH "${CACHEDIT_TORCH_LIB_DIR};$ORIGIN/${lib_from_bin}")
endif()

# Only the library is exported; the command line is for people.
install(TARGETS cachedit EXPORT cachedit-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET cachedit-cli)
  install(TARGETS cachedit-cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY include/cachedit DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(DIRECTORY models/emoji-flux DESTINATION ${CMAKE_INSTALL_DATADIR}/cachedit/models)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cachedit)
install(EXPORT cachedit-targets NAMESPACE cachedit:: DESTINATION ${package_dir})
configure_package_config_file(cmake/cachedit-config.cmake.in cachedit-config.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(cachedit-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cachedit-config.cmake
              ${PROJECT_BINARY_DIR}/cachedit-config-version.cmake
        DESTINATION ${package_dir})
