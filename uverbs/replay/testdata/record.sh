# Run in a guest that has verbs, noioctl and rdma-core's programs: prints what a program printed, with "# " before each
# line, and the record of its calls. See "make golden".
#
# usage: record.sh PROGRAM ioctl|write, where PROGRAM is devinfo or a pingpong, whose client is recorded
set -e
game=
case $1 in
rc_pingpong) game="-n 3 -s 64"; options=-e ;;
uc_pingpong | ud_pingpong) game="-n 3 -s 64" ;;
srq_pingpong) game="-q 2 -n 3 -s 64" ;;
devinfo) ;;
esac
run="ibv_$1 -d rxe1"
if test "$game"; then
	ibv_$1 -d rxe0 -g 1 $game >/dev/null &
	sleep 1
	run="$run -g 1 $game $options 10.1.0.1"
fi
test $2 = ioctl || run="noioctl $run"
verbs trace -o /tmp/record -- $run >/tmp/output
wait
library=$(readlink -f /usr/lib/*/libibverbs.so.1)
echo "# $run, ${library##*/}, Linux $(uname -r)"
sed 's/^/# /' /tmp/output
cat /tmp/record
