#ifndef FIX_TYPES_H
#define FIX_TYPES_H

typedef signed char __s8;
typedef unsigned char __u8;
typedef unsigned short __u16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;
typedef __u64 __attribute__((aligned(8))) __aligned_u64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;

#endif
