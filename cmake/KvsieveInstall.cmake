# What `cmake --install` lays down beside the kvsieve command: the library, its headers, the license, and a package
# that find_package(kvsieve CONFIG) finds.
include(CMakePackageConfigHelpers)

set(KVSIEVE_INSTALL_CMAKEDIR ${CMAKE_INSTALL_LIBDIR}/cmake/kvsieve)

set_target_properties(kvsieve PROPERTIES
  VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
install(TARGETS kvsieve EXPORT kvsieveTargets)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

install(EXPORT kvsieveTargets NAMESPACE kvsieve:: DESTINATION ${KVSIEVE_INSTALL_CMAKEDIR})
# A static library hands its own dependencies on to whoever links it; a shared one keeps them to itself.
get_target_property(kvsieve_type kvsieve TYPE)
if(kvsieve_type STREQUAL "STATIC_LIBRARY")
  set(KVSIEVE_IS_STATIC ON)
else()
  set(KVSIEVE_IS_STATIC OFF)
endif()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/kvsieveConfig.cmake.in
  ${PROJECT_BINARY_DIR}/kvsieveConfig.cmake INSTALL_DESTINATION ${KVSIEVE_INSTALL_CMAKEDIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvsieveConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvsieveConfig.cmake ${PROJECT_BINARY_DIR}/kvsieveConfigVersion.cmake
  DESTINATION ${KVSIEVE_INSTALL_CMAKEDIR})
