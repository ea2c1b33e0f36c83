# Settings that every target of the project shares.

add_library(kvsieve_settings INTERFACE)
target_compile_options(kvsieve_settings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wno-psabi>")
if(KVSIEVE_WERROR)
  target_compile_options(kvsieve_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(KVSIEVE_SANITIZE)
  target_compile_options(kvsieve_settings INTERFACE -fsanitize=${KVSIEVE_SANITIZE} -fno-omit-frame-pointer -g
                         -fno-sanitize-recover=all)
  target_link_options(kvsieve_settings INTERFACE -fsanitize=${KVSIEVE_SANITIZE})
endif()
