#include <shohin.h>
