# Run in a guest with ConnectX cards on RoCE, verbs and rdmacore-ethernet: prints what that says, and
# of its commands those for contexts and QPs, for an address handle and for a CQ of another size.
# See "make golden".
set -e
library=$(readlink -f /usr/lib/*/libibverbs.so.1)
library="${library##*/}, Linux $(uname -r)"
verbs trace -o /tmp/trace -- rdmacore-ethernet mlx5_0
echo "# What libmlx5 told mlx5_ib, and was told, of what ethernet.txt has: contexts, QPs, a CQ of another size and"
echo "# an address handle. Recorded by verbs trace."
echo "# $library"
# INVOKE_WRITE says in attribute 2 which command it is: 5 is CREATE_AH, 0x13 RESIZE_CQ.
grep -v '"errno"' /tmp/trace | grep -E '"ioctl",("method":3,|"object":4,"driver")|"id":2,"len":8,"flags":1,"data":"(05|13)000000'
