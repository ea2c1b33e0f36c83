# Runs scripts/clang_tidy_findings.awk over a log as run-clang-tidy writes it. Needs AWK and SCRIPT.
cmake_minimum_required(VERSION 3.25)

string(ASCII 27 escape)

# What the script leaves of a log in which <B> and <0> stand for the codes of bold and plain text.
function(expect_findings log expected)
  string(REPLACE "<B>" "${escape}[0;1;31m" log "${log}")
  string(REPLACE "<0>" "${escape}[0m" log "${log}")
  set(file ${CMAKE_CURRENT_BINARY_DIR}/lint_test.log)
  file(WRITE ${file} "${log}")
  execute_process(COMMAND ${AWK} -f ${SCRIPT} ${file} RESULT_VARIABLE result OUTPUT_VARIABLE output)
  file(REMOVE ${file})
  if(NOT result EQUAL 0 OR NOT output STREQUAL expected)
    message(FATAL_ERROR "exit ${result}, got\n${output}expected\n${expected}")
  endif()
endfunction()

expect_findings([==[
clang-tidy-14 --use-color -p=build/release -quiet /src/a.cpp
<B>/src/a.hpp:2:32: <0><B>error: <0>use nullptr [modernize-use-nullptr,-warnings-as-errors]<0>
inline int* nothing() { return 0; }
<B>                               ^
<0>                               nullptr
<B>/src/a.cpp:9:36: <0><B>error: <0>moved from twice [bugprone-use-after-move]<0>
    take(std::move(v));
<B>                   ^
<0><B>/src/a.cpp:7:5: <0>note: move occurred here<0>
    take(std::move(v));
<0>    ^
10146 warnings generated.
clang-tidy-14 --use-color -p=build/release -quiet /src/c.cpp
1 warning generated.
Suppressed 1 warnings (1 in non-user code).
Use -header-filter=.* to display errors from all non-system headers. Use -system-headers to display errors from system headers as well.
2 warnings treated as errors
clang-tidy-14 --use-color -p=build/release -quiet /src/b.cpp
<B>/src/a.hpp:2:32: <0><B>error: <0>use nullptr [modernize-use-nullptr,-warnings-as-errors]<0>
inline int* nothing() { return 0; }
<B>                               ^
<0>                               nullptr
<B>b.cpp:2:18: <0><B>error: <0>use of undeclared identifier 'x' [clang-diagnostic-error]<0>
int g() { return x; }
<B>                 ^
<0>1 warning and 1 error generated.
Error while processing /src/b.cpp.
]==] [==[
/src/a.hpp:2:32: error: use nullptr [modernize-use-nullptr,-warnings-as-errors]
inline int* nothing() { return 0; }
                               ^
                               nullptr
/src/a.cpp:9:36: error: moved from twice [bugprone-use-after-move]
    take(std::move(v));
                   ^
/src/a.cpp:7:5: note: move occurred here
    take(std::move(v));
    ^
b.cpp:2:18: error: use of undeclared identifier 'x' [clang-diagnostic-error]
int g() { return x; }
                 ^
]==])

# What is no finding and not known is not hidden.
expect_findings("clang-tidy-14 -p=build -quiet a.cpp\nStack dump:\n12 warnings generated.\n" "Stack dump:\n")
expect_findings("clang-tidy-14 -p=build -quiet a.cpp\n3 warnings generated.\n" "")
