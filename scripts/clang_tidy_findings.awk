# SPDX-License-Identifier: Apache-2.0
#
# What run-clang-tidy prints, without colours, command lines and counts of warnings, and each finding (its line, the excerpt
# and notes below it) once, however many sources include the header that it is in. What is not known stays.

function end_finding() {
  if (finding != "" && !(finding in seen)) {
    seen[finding] = 1
    printf "%s", finding
  }
  finding = ""
}

{ gsub(/\033\[[0-9;]*[mK]/, "") }

/^clang-tidy(-[0-9]+)? / || /^[0-9]+ (warning|error)s?( and [0-9]+ errors?)? generated\.$/ ||
/^Suppressed [0-9]+ warnings/ || /^Use -header-filter=/ || /^[0-9]+ warnings? treated as errors?$/ ||
/^Error while processing / {
  end_finding()
  next
}

/:[0-9]+:[0-9]+: (warning|error): / { end_finding() }

/:[0-9]+:[0-9]+: (warning|error): / || finding != "" {
  finding = finding $0 "\n"
  next
}

{ print }

END { end_finding() }
