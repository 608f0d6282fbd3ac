#ifndef FIX_BASE_H
#define FIX_BASE_H

#include <fix/types.h>

struct fix_gid {
	__be64 subnet_prefix;
	__be64 interface_id;
};

struct fix_not_listed {
	__u32 x;
};

#endif
