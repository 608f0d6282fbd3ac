#ifndef FIX_H
#define FIX_H

#include <fix/base.h>

#define FIX_VERSION 3
#define FIX_BIG 0xfedcba9876543210ULL
#define FIX_TYPE(client, op) ((client << 10) + op)

enum fix_kind {
	FIX_KIND_NONE,
	FIX_KIND_ONE,
	FIX_KIND_SAME = FIX_KIND_ONE,
	FIX_KIND_TEN = 10,
	FIX_KIND_MAX
};

enum fix_signed {
	FIX_MINUS = -2,
	FIX_LOWEST = -0x7fffffffffffffffLL - 1,
	FIX_PLUS = 0x123456789LL,
};

enum {
	FIX_FLAG_LOW = 1 << 0,
	FIX_FLAG_TOP = 1ULL << 63,
};

enum {
	FIX_OTHER = 7,
};

/* Every type of number, arrays of arrays, text, padding, and a pointer. */
struct fix_plain {
	__u8 a;
	__be16 port;
	__s32 fd;
	__u8 mac[6];
	__u8 reserved;
	__u64 grid[2][3];
	__s8 delta;
	char name[5];
	__u8 tfc_pad;
	__be32 words[2];
	void *priv;
	enum fix_kind kind;
	__u16 reserved1[3];
};

/* A union that is a field, with structs in it that have no name. */
struct fix_wr {
	__aligned_u64 wr_id;
	__u32 pad_1[1];
	union {
		__be32 imm_data;
		__u32 invalidate_rkey;
	} ex;
	union {
		struct {
			__aligned_u64 remote_addr;
			__u32 rkey;
			__u32 reserved;
		} rdma;
		struct {
			__u16 pkey_index;
			struct fix_gid gid;
		} ud;
		__u8 raw[20];
	} wr;
};

/* Members without a name: a struct, and unions with and without a substitute. */
struct fix_anon {
	__u32 before;
	struct {
		__u16 left;
		__u16 right;
	};
	union {
		__aligned_u64 data;
		__s64 data_s64;
	};
	union {
		__u32 whole;
		struct {
			__u16 low;
			__u16 high;
		};
		struct {
			__u8 byte;
		} part;
	};
	__u32 after;
};

/* The same type for two fields, and the same name for two types. */
struct fix_pair {
	union {
		__u32 v4;
		__u8 v6[16];
	} src, dst;
	struct {
		struct {
			__u32 depth;
		} src;
	} outer;
};

struct fix_sge {
	__aligned_u64 addr;
	__u32 length;
	__u32 lkey;
};

struct fix_old_tail {
	__u32 handle;
	__u32 driver_data[0];
};

struct fix_tail {
	__aligned_u64 response;
	__u16 count;
	__u16 odd[];
};

struct fix_aligned_tail {
	__u32 num_sge;
	__u32 cur_sge;
	union {
		struct {
			struct {} __empty_inline_data;
			__u8 inline_data[];
		};
		struct {
			struct {} __empty_sge;
			struct fix_sge sge[];
		};
	};
};

union fix_address {
	__u8 raw[16];
	struct fix_gid gid;
	__u32 reserved;
};

#endif
