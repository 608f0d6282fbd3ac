package umad_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// Who is at the other end of the cable.
func ExampleOpen() {
	port, err := umad.Open("mlx5_0", 1)
	if errors.Is(err, os.ErrPermission) {
		log.Fatal("run this as root: ", err)
	} else if err != nil {
		log.Fatal(err)
	}
	defer port.Close()
	agent, err := port.Register(umad.AgentOptions{Class: mad.ClassSubnDirected})
	if err != nil {
		log.Fatal(err) // for instance a port of RoCE
	}
	req, err := mad.NewDirectedSMP(mad.MethodGet, mad.AttrNodeInfo, 0, 1)
	if err != nil {
		log.Fatal(err)
	}
	var node mad.NodeInfo
	if err := agent.Query(context.Background(), umad.Addr{}, req, &node); err != nil {
		log.Fatal(err)
	}
	fmt.Println(node.NodeType, node.NodeGUID, "with", node.NumPorts, "ports")
}

// All nodes of a subnet, whose subnet manager is at LID 1.
func ExampleAgent_Do() {
	port, err := umad.Open("mlx5_0", 1)
	if err != nil {
		log.Fatal(err)
	}
	defer port.Close()
	agent, err := port.Register(umad.AgentOptions{Class: mad.ClassSA})
	if err != nil {
		log.Fatal(err)
	}
	req, err := mad.NewSA(mad.MethodGetTable, &mad.NodeRecord{}, 0)
	if err != nil {
		log.Fatal(err)
	}
	answer, err := agent.Do(context.Background(), umad.Addr{LID: 1}, req)
	if err != nil {
		log.Fatal(err)
	}
	nodes, err := mad.Table[mad.NodeRecord](answer)
	if err != nil {
		log.Fatal(err)
	}
	for _, n := range nodes {
		fmt.Println(n.LID, n.NodeInfo.NodeGUID, n.NodeDescription.NodeString)
	}
}

// A server that rdma-core's ibping can ping.
func ExampleAgent_Serve() {
	port, err := umad.Open("mlx5_0", 1)
	if err != nil {
		log.Fatal(err)
	}
	defer port.Close()
	agent, err := port.Register(umad.AgentOptions{Class: mad.ClassPing, OUI: mad.OUIOpenIB, Methods: []mad.Method{mad.MethodGet}})
	if err != nil {
		log.Fatal(err)
	}
	err = agent.Serve(context.Background(), func(req *mad.Packet, from umad.Addr) *mad.Packet {
		answer := req.Reply()
		answer.Data = []byte("this host")
		return answer
	})
	log.Fatal(err)
}

// A subnet manager says that it is there.
func ExampleOpenIsSM() {
	sm, err := umad.OpenIsSM("mlx5_0", 1)
	if err != nil {
		log.Fatal(err)
	}
	defer sm.Close()
}
