// Command coredns is CoreDNS with the few plugins that cluster DNS needs. The stock build links
// every cloud's client and takes several times as long to compile.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	// A plugin that is not in this list is refused; its order is the order in which they answer.
	dnsserver.Directives = []string{"bind", "ready", "errors", "cache", "kubernetes"}
	coremain.Run()
}
