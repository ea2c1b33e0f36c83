# Writes OUTPUT, a header with the commit of SOURCE_DIR, and leaves it alone when it says that already.
cmake_minimum_required(VERSION 3.25)
set(commit "unknown")
if(GIT)
  execute_process(COMMAND ${GIT} describe --always --dirty --abbrev=12 --exclude=*
                  WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE described RESULT_VARIABLE result
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(result EQUAL 0)
    set(commit ${described})
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define KVSIEVE_COMMIT \"@commit@\"\n" @ONLY)
