# Installs the build tree BUILD_DIR into an empty prefix, builds EXAMPLES_DIR against that alone, as a user would, and runs
# what comes out.
#   cmake -DBUILD_DIR=... -DBUILD_TYPE=... -DEXAMPLES_DIR=... -DWORK_DIR=... -DCXX=... -DGENERATOR=... -P install_test.cmake
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  list(JOIN ARGN " " command)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${command}\nfailed (${result}):\n${output}")
  endif()
  message(STATUS "${command}\n${output}")
endfunction()

set(prefix ${WORK_DIR}/prefix)
file(REMOVE_RECURSE ${WORK_DIR})
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix} --config ${BUILD_TYPE})
run(${CMAKE_COMMAND} -S ${EXAMPLES_DIR} -B ${WORK_DIR}/build -G ${GENERATOR} -DCMAKE_BUILD_TYPE=${BUILD_TYPE}
    -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_PREFIX_PATH=${prefix} "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror"
    # A find_package that looked into other builds' trees would not show that the installed package stands on its own.
    -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build --config ${BUILD_TYPE})
foreach(example msa_decode qsa_decode)
  run(${WORK_DIR}/build/${example})
endforeach()

file(GLOB command ${prefix}/bin/kvsieve)
if(NOT command)
  message(FATAL_ERROR "The kvsieve command was not installed")
endif()
run(${command} info)
