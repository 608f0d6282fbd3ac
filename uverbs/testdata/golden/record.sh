# Run in a guest that has abitrace and rdma-core's programs: prints the golden file of a
# program, devinfo or the client of a pingpong. More arguments go to abitrace. See "make golden".
set -e
case $1 in
rc_pingpong)
	run="ibv_rc_pingpong -d rxe1 -g 1 -n 3 -s 64 -e 10.1.0.1"
	ibv_rc_pingpong -d rxe0 -g 1 -n 3 -s 64 >/dev/null &
	sleep 1 ;;
uc_pingpong | ud_pingpong)
	run="ibv_$1 -d rxe1 -g 1 -n 3 -s 64 10.1.0.1"
	ibv_$1 -d rxe0 -g 1 -n 3 -s 64 >/dev/null &
	sleep 1 ;;
srq_pingpong)
	run="ibv_srq_pingpong -d rxe1 -g 1 -q 2 -n 3 -s 64 10.1.0.1"
	ibv_srq_pingpong -d rxe0 -g 1 -q 2 -n 3 -s 64 >/dev/null &
	sleep 1 ;;
devinfo)
	run="ibv_devinfo -d rxe1" ;;
esac
shift
abitrace -o /tmp/trace "$@" $run >/tmp/output
wait
library=$(readlink -f /usr/lib/*/libibverbs.so.1)
echo "# $run, ${library##*/}, Linux $(uname -r), abitrace $*"
sed 's/^/# /' /tmp/output
cat /tmp/trace
