#!/bin/sh
# Record what others do, which unit tests compare with what we do: the commands that rdma-core's programs
# give to the kernel, the work queue entries that libmlx5 and libefa write, as the model of a card reads them, and
# the packets that rxe sends. It runs in the checkout's root, after its programs are built: go run ./test/run -suite golden.
#
# usage: golden.sh KERNEL ARCH
set -eu
kernel=$1
bin=.build/$2
out=.build/golden
log=.build/golden.log
ibverbs=ibverbs-utils,ibverbs-providers

vmrun() { .build/vmrun -kernel "$kernel" "$@"; }

# The commands of pingpongs and devinfo on rxe, by ioctl and by write().
records=uverbs/replay/testdata
for program in rc_pingpong uc_pingpong ud_pingpong srq_pingpong devinfo; do
	for path in ioctl write; do
		vmrun -with $ibverbs,dash,coreutils,sed -file "$bin/verbs:/bin/verbs" -file "$bin/noioctl:/bin/noioctl" \
			-file $records/record.sh:/record.sh sh /record.sh $program $path >$out
		sed -n 's/^# //p' $out >$records/${program}_$path.txt
		sed '/^#/d' $out >$records/${program}_$path.record
	done
done

# ours DEVICE NAME FILE: record the commands of the library itself on a device.
ours() {
	vmrun -device "$1" -env GOVERBS_KERNEL_TEST=1 -env GOVERBS_DEVICES="$2" -with dash,coreutils -file "$bin/verbs:/bin/verbs" \
		-file "$bin/replay.test:/bin/replay.test" sh -c \
		'verbs trace -o /tmp/record -- replay.test -test.run ^TestExercise$ >&2 && cat /tmp/record' >$out
	mv $out "$records/$3.record"
}
ours rxe rxe0,rxe1 ours_rxe
ours siw siw0,siw1 ours_siw
ours mlx5,mode=roce mlx5_0,mlx5_1 ours_mlx5_roce
ours mlx5,mode=ib mlx5_0,mlx5_1 ours_mlx5_ib

dir=mmio/mlx5/testdata/golden

# The commands of programs on a ConnectX.
vmrun -device mlx5,mode=ib -with $ibverbs,dash,coreutils,grep -file "$bin/verbs:/bin/verbs" \
	-file $dir/record.sh:/record.sh sh /record.sh >$out
mv $out $dir/commands.txt

# on_card MODE PROGRAM ARG...: run a program of ours on a ConnectX that logs what it fetches.
on_card() {
	mode=$1 program=$2
	shift 2
	vmrun -device mlx5,mode="$mode" -hca-verbose -with $ibverbs,dash,coreutils,grep -file "$bin/verbs:/bin/verbs" \
		-file "$bin/$program:/bin/$program" -file $dir/record_ethernet.sh:/record.sh "$@" >$out 2>$log
}

# sends QPN...: print the send queue entries of these QPs that the log has: the QP and the bytes.
sends() {
	qps=$(echo "$@" | sed 's/ /\\|/g')
	sed -n "s/^hca: card 0: .*QP \($qps\) [A-Z]* WQE .*\[\([0-9a-f]*\)\]$/\1 \2/p" $log
}

on_card ib rdmacore-wqes rdmacore-wqes mlx5_0
read -r qps a b rest <$out
test "$qps" = qps
{
	echo "# WQEs that libmlx5 wrote, as a device read them: the number of the QP and all of its bytes. What was"
	echo "# asked for is in golden_test.go, in the same order. The first line has what they contain."
	cat $out
	sends "$a" "$b"
} >$dir/wqes.txt

on_card ib rdmacore-queues rdmacore-queues mlx5_0
read -r _ uc _ _ ud _ rc peer _ xrc _ _ _ _ _ lkey rest <$out
test -n "$lkey"
{
	echo "# As of wqes.txt, on queues of every type, and with rq before the number of the queue the receives that were"
	echo "# taken from it. What was asked for is in golden_queues_test.go, queue by queue in the same order."
	cat $out
	sed -n -e "s/^hca: card 0: .*QP \($uc\|$ud\|$rc\|$peer\|$xrc\) [A-Z]* WQE .*\[\([0-9a-f]*\)\]$/\1 \2/p" \
		-e "s/^hca: card 0: .*RQ \(0x[0-9a-f]*\) takes WQE .*\[\([0-9a-f]*${lkey#0x}[0-9a-f]*\)\]$/rq \1 \2/p" $log
} >$dir/queues.txt

on_card roce rdmacore-ethernet sh /record.sh
read -r _ raw _ headers _ ud rest <$out
test -n "$ud"
{
	echo "# As of wqes.txt, on Ethernet. What was asked for is in golden_ethernet_test.go, queue by queue in the same order."
	sed -n 1p $out
	sends "$raw" "$headers" "$ud"
} >$dir/ethernet.txt
sed 1d $out >$dir/commands_ethernet.txt

# on_efa PERSONALITY [list]: print what libefa writes to an EFA.
on_efa() {
	.build/vmrun -kernel latest -device efa,personality="$1" -hca-verbose -with-suite sid -with ibverbs-providers \
		-file "$bin/rdmacore-efa:/bin/rdmacore-efa" rdmacore-efa efa_0 $2 >$out 2>$log
	read -r _ _ _ _ _ _ _ _ _ peer _ <$out
	test -n "$peer"
	cat $out
	sed -n -e "/QP $peer:/d" -e 's/^efa: card 0: QP \(0x[0-9a-f]*: \(send\|descriptor\|receive\) .*\)$/\1/p' $log
}
{
	echo "# What libefa wrote, as a device read it: the number of the QP, and the counter of a doorbell or all bytes of a"
	echo "# request or descriptor. What was asked for is in golden_test.go, in the same order. The first line has what"
	echo "# the bytes contain."
	on_efa plain ""
} >mmio/efa/testdata/golden/queues.txt
{
	echo "# As of queues.txt: a list of ten sends on a device that accepts four at a time."
	on_efa batch list
} >mmio/efa/testdata/golden/batch.txt

# The packets of rxe. It supports all operations from Linux 6.2 on, so this is not for the given kernel.
.build/vmrun -kernel latest -env GOVERBS_KERNEL_TEST=1 -env GOVERBS_RECORD=1 "$bin/softrxe.test" -test.run '^TestExchanges' >$out
{
	echo "# The packets that rxe sent to a software device, which recorded them: from the IP header, which the software"
	echo "# device makes up, to the ICRC. Each title names a case of exchange_cases_test.go, the addresses and the end"
	echo "# that sent them. Recorded by test/run/golden.sh:"
	sed -e /^PASS$/d -e 's/^testenv:/#/' $out
} >test/suites/softrxe/testdata/exchanges.txt
