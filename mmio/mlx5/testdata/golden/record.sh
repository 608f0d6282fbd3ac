# Run in a guest with two ConnectX cards, verbs and rdma-core's programs: prints commands.txt.
# Of the commands of the clients of pingpongs, those that make something are kept, which have a
# part of the driver's.
# See "make golden".
set -e
library=$(readlink -f /usr/lib/*/libibverbs.so.1)
library="${library##*/}, Linux $(uname -r)"
echo "# What libmlx5 told mlx5_ib, and was told, when rdma-core's pingpongs ran: those commands that have a"
echo "# part of the driver's. Recorded by verbs trace."
for p in "rc_pingpong -e" uc_pingpong ud_pingpong "srq_pingpong -q 2" "xsrq_pingpong -c 1"; do
	name=${p%% *}
	options=${p#"$name"}
	case $name in rc_pingpong) server= ;; *) server=$options ;; esac
	ibv_$name -d mlx5_0$server -n 3 -s 64 >/dev/null &
	sleep 1
	run="ibv_$name -d mlx5_1$options -n 3 -s 64 127.0.0.1"
	verbs trace -o /tmp/trace -- $run >/dev/null
	wait
	echo "# $name"
	echo "# $run, $library"
	# Contexts, CQs, QPs and SRQs. Of the forms in which libmlx5 asks for a context one is taken.
	grep '"id":4096,' /tmp/trace | grep -v '"errno"' | grep -E '"ioctl",("method":3,|"object":[345],"driver")'
done
