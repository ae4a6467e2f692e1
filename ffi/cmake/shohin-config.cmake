# The targets shohin::shohin (the shared library) and shohin::static.
get_filename_component(_shohin_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
find_package(Threads REQUIRED)

if(NOT TARGET shohin::shohin)
  add_library(shohin::shohin SHARED IMPORTED)
  set_target_properties(shohin::shohin PROPERTIES
    IMPORTED_LOCATION "${_shohin_prefix}/lib/${CMAKE_SHARED_LIBRARY_PREFIX}shohin${CMAKE_SHARED_LIBRARY_SUFFIX}"
    INTERFACE_INCLUDE_DIRECTORIES "${_shohin_prefix}/include")
  if(NOT APPLE)
    set_target_properties(shohin::shohin PROPERTIES IMPORTED_SONAME libshohin.so.0)
  endif()

  add_library(shohin::static STATIC IMPORTED)
  set_target_properties(shohin::static PROPERTIES
    IMPORTED_LOCATION "${_shohin_prefix}/lib/libshohin.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_shohin_prefix}/include"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")
endif()
unset(_shohin_prefix)
