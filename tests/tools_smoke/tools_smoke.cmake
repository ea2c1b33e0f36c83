# Runs `kvsieve demo` and `kvsieve bench` on tiny shapes and looks at what they print. Needs KVSIEVE (the command) and
# WORK_DIR.
cmake_minimum_required(VERSION 3.25)

# Runs the command; its output is in `output`, its errors in `errors`.
function(kvsieve expected_exit)
  execute_process(COMMAND ${KVSIEVE} ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE errors)
  if(NOT result EQUAL expected_exit)
    message(FATAL_ERROR "kvsieve ${ARGN}: exit ${result}, expected ${expected_exit}\n${text}\n${errors}")
  endif()
  set(output "${text}" PARENT_SCOPE)
  set(errors "${errors}" PARENT_SCOPE)
endfunction()

function(expect_match text pattern)
  if(NOT text MATCHES "${pattern}")
    message(FATAL_ERROR "expected ${pattern} in\n${text}")
  endif()
endfunction()

# The JSON document in `output` has this many rows, all of them right.
function(expect_rows count)
  string(JSON rows LENGTH "${output}" rows)
  if(NOT rows EQUAL count)
    message(FATAL_ERROR "${rows} rows, expected ${count}")
  endif()
  math(EXPR last "${count} - 1")
  foreach(i RANGE ${last})
    string(JSON ok GET "${output}" rows ${i} ok)
    if(NOT ok)
      message(FATAL_ERROR "row ${i} is wrong:\n${output}")
    endif()
    string(JSON path GET "${output}" rows ${i} path)
    if(path STREQUAL "auto")
      message(FATAL_ERROR "row ${i} does not say which path ran:\n${output}")
    endif()
  endforeach()
endfunction()

kvsieve(0 demo --quick)
expect_match("${output}" "9 of 9 right")
string(REPLACE "\n" ";" lines "${output}")
foreach(line IN LISTS lines)
  string(LENGTH "${line}" width)
  if(width GREATER 120)
    message(FATAL_ERROR "${width} columns: ${line}")
  endif()
endforeach()
# Not a terminal, so a line for each row.
expect_match("${errors}" "demo: 9/9 ")

kvsieve(0 demo --quick --json --threads 1)
expect_rows(9)

kvsieve(0 bench --suite cpu --quick)
expect_match("${output}" "results right \\(sampled rows against float64\\) in 12 of 12")
foreach(word IN ITEMS "commit " "command  kvsieve bench --suite cpu --quick" "sgemm [0-9.]+ GFLOP/s" "read [0-9.]+ GB/s"
                      "quick: tiny shapes" "peak memory")
  expect_match("${output}" "${word}")
endforeach()

file(MAKE_DIRECTORY ${WORK_DIR})
kvsieve(0 bench --quick --json --threads 1 --filter "msa DECODE" --output ${WORK_DIR}/bench.json)
expect_rows(4)
file(READ ${WORK_DIR}/bench.json written)
if(NOT written STREQUAL output)
  message(FATAL_ERROR "--output wrote something else than what was printed")
endif()

kvsieve(2 bench --quick --filter nothing)
expect_match("${errors}" "no row of the suite has that in its name")
kvsieve(2 bench --suite none)
kvsieve(2 bench --quick --filter "MSA decode bf16 B 1" --output ${WORK_DIR}/no/such/folder)
