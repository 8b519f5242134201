# Compiler settings shared by every target, and the function that declares a room of src/.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(CACHEDIT_CCACHE ccache)
if(CACHEDIT_CCACHE)
  # A precompiled header hides its inputs from ccache unless these are relaxed.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CACHEDIT_CCACHE})
endif()

find_program(CACHEDIT_MOLD mold)
if(CACHEDIT_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

if(CACHEDIT_SANITIZE)
  # Sanitized code makes GCC 12 report std::regex's internals as uninitialized.
  add_compile_options(-fsanitize=${CACHEDIT_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  set(CACHEDIT_SANITIZER_WARNINGS -Wno-maybe-uninitialized)
  add_link_options(-fsanitize=${CACHEDIT_SANITIZE})
endif()

add_library(cachedit_options INTERFACE)
# -Wno-missing-field-initializers: options structs are filled by name and default the rest.
# -Wno-restrict: GCC 12 reports it for `"text" + std::string` (GCC bug 105651).
target_compile_options(cachedit_options INTERFACE
  -Wall -Wextra -Wpedantic -Wno-missing-field-initializers -Wno-restrict -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  ${CACHEDIT_SANITIZER_WARNINGS} $<$<BOOL:${CACHEDIT_WERROR}>:-Werror> -fpch-preprocess)
# Lets ATen's own headers include the few operators they need instead of all of them.
target_compile_definitions(cachedit_options INTERFACE AT_PER_OPERATOR_HEADERS)
target_include_directories(cachedit_options INTERFACE
  ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${PROJECT_BINARY_DIR}/generated)

# cachedit_room(NAME [TORCH] USES room... LINK library...)
#
# Declares the static library cachedit_NAME from every .cc file under src/NAME, so that adding a
# file needs no edit here. USES lists the rooms that it may include (tools/check_layers.py
# enforces the same list); TORCH gives it the tensor headers, precompiled.
function(cachedit_room name)
  cmake_parse_arguments(ARG "TORCH" "" "USES;LINK" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  add_library(cachedit_${name} STATIC ${sources})
  target_link_libraries(cachedit_${name} PUBLIC cachedit_options)
  foreach(room IN LISTS ARG_USES)
    target_link_libraries(cachedit_${name} PUBLIC cachedit_${room})
  endforeach()
  target_link_libraries(cachedit_${name} PUBLIC ${ARG_LINK})
  if(ARG_TORCH)
    target_link_libraries(cachedit_${name} PUBLIC torch)
    if(NOT TARGET cachedit_pch)
      # One precompiled header for every room: it holds what nearly all of their files include.
      file(WRITE ${PROJECT_BINARY_DIR}/pch.cc "")
      add_library(cachedit_pch STATIC ${PROJECT_BINARY_DIR}/pch.cc)
      target_link_libraries(cachedit_pch PUBLIC cachedit_options torch)
      target_precompile_headers(cachedit_pch PRIVATE
        <algorithm> <cstdint> <functional> <map> <memory> <optional> <span> <string> <string_view>
        <utility> <vector> <ATen/TensorOperators.h> <ATen/core/Tensor.h> <c10/util/StringUtil.h>)
    endif()
    target_precompile_headers(cachedit_${name} REUSE_FROM cachedit_pch)
  endif()
endfunction()
