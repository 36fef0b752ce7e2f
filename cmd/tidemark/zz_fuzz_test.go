package main
import ("testing";"math/rand";"os";"bytes";"strings";"sort";"fmt")
func dumps(dir string) string { var all []string
 for _,n:=range []string{"users","blobs","points"} { r:=tidemarkRun("dump",dir,n); l:=strings.Split(r.stdout,"\n"); sort.Strings(l); all=append(all,n+strings.Join(l,"\n")) }
 return strings.Join(all,"|") }
func TestZZ(t *testing.T){
 for _,mk:=range []func(*testing.T)string{newHeap,killedHeap}{
 dir:=mk(t); b,_:=os.ReadFile(dir+"/heap"); want:=dumps(dir)
 cnt:=map[string]int{}
 for seed:=0;seed<2500;seed++{
  r:=rand.New(rand.NewSource(int64(seed)))
  c:=bytes.Clone(b)
  var o int
  switch r.Intn(4){
   case 0: o=r.Intn(0x20c0)
   case 1: u:=1+r.Intn(len(b)/65536-1); o=u*65536+r.Intn(8)
   default: u:=1+r.Intn(7); o=u*65536+64+r.Intn(600)
  }
  bit:=r.Intn(8)
  c[o]^=1<<bit
  os.WriteFile(dir+"/heap",c,0o666)
  v:=tidemarkRun("verify",dir)
  got:=dumps(dir)
  k:=fmt.Sprint(v.status," same=",got==want); cnt[k]++
  if v.status==0 && got!=want && cnt[k]<4 { t.Errorf("undetected: %#x bit %d word was % x", o, bit, b[o&^7:o&^7+8]) }
 }
 fmt.Println(cnt)
 }
}
