#pragma once

// Marks what libcachedit exports; everything else is hidden.
#define CACHEDIT_API __attribute__((visibility("default")))
