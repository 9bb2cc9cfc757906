"""Write 28 operations of models as job folders of `kernel_variants.py`, to time their default texts.

    python benchmarks/model_jobs.py OUT [--dtype bfloat16]     # then as benchmarks/training_jobs.py describes

Low-rank updates, windows, graphs, distances, metrics and gates, most as their users write them: the second sample of
operations that no template was made for. Those that are used in training have their gradients.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.training_jobs import Operation, write_folders

OPERATIONS = {
    "lora_linear": Operation(
        ("self.w=nn.Linear(1024,1024)\nself.a=nn.Linear(1024,16,bias=False)\nself.b=nn.Linear(16,1024,bias=False)"),
        "x",
        "return self.w(x)+self.b(self.a(x))*2.0",
        "torch.randn(4096,1024)",
    ),
    "moe_gate": Operation(
        "self.g=nn.Linear(1024,8,bias=False)",
        "x",
        ("p=torch.softmax(self.g(x),-1)\nv,i=torch.topk(p,2,-1)\nreturn v/v.sum(-1,keepdim=True)"),
        "torch.randn(8192,1024)",
        has_gradients=False,
    ),
    "causal_conv1d": Operation(
        "self.c=nn.Conv1d(1024,1024,4,groups=1024,padding=3)",
        "x",
        "return F.silu(self.c(x)[..., :x.shape[-1]])",
        "torch.randn(8,1024,2048)",
    ),
    "window_bias_attention": Operation(
        "self.bias=nn.Parameter(torch.zeros(8,49,49))",
        "q,k,v",
        ("a=(q*32**-0.5)@k.transpose(-2,-1)+self.bias\nreturn a.softmax(-1)@v"),
        "torch.randn(256,8,49,32),torch.randn(256,8,49,32),torch.randn(256,8,49,32)",
    ),
    "cdist_min": Operation(
        "",
        "x,y",
        (
            "d=(x*x).sum(-1)[:,:,None]+(y*y).sum(-1)[:,None,:]-2*x@y.transpose(1,2)\n"
            "return d.min(2).values.mean()+d.min(1).values.mean()"
        ),
        "torch.randn(8,2048,3),torch.randn(8,2048,3)",
    ),
    "clip_loss": Operation(
        "self.s=nn.Parameter(torch.tensor(2.0))",
        "a,b",
        (
            "a=F.normalize(a,dim=-1); b=F.normalize(b,dim=-1)\n"
            "l=a@b.t()*self.s.exp()\n"
            "t=torch.arange(a.shape[0],device=a.device)\n"
            "return (F.cross_entropy(l,t)+F.cross_entropy(l.t(),t))/2"
        ),
        "torch.randn(2048,512),torch.randn(2048,512)",
    ),
    "fourier_features": Operation(
        "self.register_buffer('B',torch.randn(3,256)*10)",
        "x",
        ("p=2*torch.pi*x@self.B\nreturn torch.cat([p.sin(),p.cos()],-1)"),
        "torch.randn(65536,3)",
        has_gradients=False,
    ),
    "layer_scale_residual": Operation(
        ("self.n=nn.LayerNorm(768)\nself.g=nn.Parameter(torch.ones(768)*1e-5)"),
        "x,y",
        "return x+self.g*self.n(y)",
        "torch.randn(64,197,768),torch.randn(64,197,768)",
    ),
    "gnn_message": Operation(
        "",
        "x,src,dst",
        ("m=F.relu(x[src])\nreturn torch.zeros_like(x).index_add(0,dst,m)"),
        "torch.randn(50000,64),torch.randint(0,50000,(400000,)),torch.randint(0,50000,(400000,))",
        has_gradients=False,
    ),
    "segment_mean": Operation(
        "",
        "x,seg",
        (
            "s=torch.zeros(10000,64,device=x.device).index_add(0,seg,x)\n"
            "n=torch.zeros(10000,device=x.device).index_add(0,seg,torch.ones(x.shape[0],device=x.device))\n"
            "return s/n.clamp(min=1)[:,None]"
        ),
        "torch.randn(200000,64),torch.randint(0,10000,(200000,))",
        has_gradients=False,
    ),
    "ssim": Operation(
        (
            "g=torch.exp(-(torch.arange(11).float()-5)**2/4.5); g=g/g.sum()\n"
            "self.register_buffer('w',(g[:,None]*g[None,:]).expand(3,1,11,11).contiguous())"
        ),
        "x,y",
        (
            "c=lambda z: F.conv2d(z,self.w,padding=5,groups=3)\n"
            "mx,my=c(x),c(y)\n"
            "sx=c(x*x)-mx*mx; sy=c(y*y)-my*my; sxy=c(x*y)-mx*my\n"
            "return (((2*mx*my+1e-4)*(2*sxy+9e-4))/((mx*mx+my*my+1e-4)*(sx+sy+9e-4))).mean()"
        ),
        "torch.rand(8,3,512,512),torch.rand(8,3,512,512)",
        has_gradients=False,
    ),
    "grid_sample": Operation(
        "",
        "x,g",
        "return F.grid_sample(x,g,mode='bilinear',padding_mode='zeros',align_corners=False)",
        "torch.randn(16,32,128,128),torch.rand(16,128,128,2)*2-1",
        has_gradients=False,
    ),
    "pixel_shuffle_conv": Operation(
        "self.c=nn.Conv2d(64,256,3,padding=1)",
        "x",
        "return F.leaky_relu(F.pixel_shuffle(self.c(x),2),0.2)",
        "torch.randn(8,64,128,128)",
    ),
    "alibi_attention": Operation(
        "self.register_buffer('s',2.0**(-torch.arange(1,9).float()))",
        "q,k,v",
        (
            "n=q.shape[2]\n"
            "i=torch.arange(n,device=q.device)\n"
            "d=(i[None,:]-i[:,None]).float()\n"
            "a=q@k.transpose(-1,-2)/8.0+(self.s[:,None,None]*d).to(q.dtype)\n"
            "a=a.masked_fill(i[None,:]>i[:,None],float('-inf'))\n"
            "return a.softmax(-1)@v"
        ),
        "torch.randn(4,8,1024,64),torch.randn(4,8,1024,64),torch.randn(4,8,1024,64)",
    ),
    "einsum_outer": Operation(
        "",
        "x,y",
        "return torch.einsum('bi,bj->bij',x,y)",
        "torch.randn(512,256),torch.randn(512,256)",
    ),
    "bilinear_layer": Operation(
        "self.b=nn.Bilinear(64,64,32)",
        "x,y",
        "return self.b(x,y)",
        "torch.randn(4096,64),torch.randn(4096,64)",
        has_gradients=False,
    ),
    "fake_quant": Operation(
        "",
        "x,s",
        ("q=torch.clamp(torch.round(x/s),-128,127)\nreturn x+(q*s-x).detach()"),
        "torch.randn(4096,4096),torch.rand(4096,1)+0.1",
        has_gradients=False,
    ),
    "gated_mlp": Operation(
        (
            "self.w1=nn.Linear(768,2048,bias=False)\n"
            "self.w2=nn.Linear(768,2048,bias=False)\n"
            "self.w3=nn.Linear(2048,768,bias=False)"
        ),
        "x",
        "return self.w3(F.gelu(self.w1(x),approximate='tanh')*self.w2(x))",
        "torch.randn(2048,768)",
    ),
    "ssm_scan": Operation(
        "",
        "a,b",
        (
            "h=torch.zeros_like(a[:,0]); o=[]\n"
            "for t in range(64):\n"
            "    h=a[:,t]*h+b[:,t]; o.append(h)\n"
            "return torch.stack(o,1)"
        ),
        "torch.rand(16,64,2048),torch.randn(16,64,2048)",
        has_gradients=False,
    ),
    "group_query_rope": Operation(
        "",
        "q,co,si",
        ("h=q.shape[-1]//2\nr=torch.cat([-q[...,h:],q[...,:h]],-1)\nreturn q*co[:,None]+r*si[:,None]"),
        "torch.randn(4,32,2048,128),torch.randn(1,2048,128),torch.randn(1,2048,128)",
    ),
    "topk_mask": Operation(
        "",
        "x",
        ("v=torch.topk(x,32,-1).values[...,-1:]\nreturn torch.where(x>=v,x,torch.zeros_like(x))"),
        "torch.randn(4096,1024)",
        has_gradients=False,
    ),
    "pairwise_iou": Operation(
        "",
        "a,b",
        (
            "lt=torch.maximum(a[:,None,:2],b[None,:,:2]); rb=torch.minimum(a[:,None,2:],b[None,:,2:])\n"
            "wh=(rb-lt).clamp(min=0); inter=wh[...,0]*wh[...,1]\n"
            "ar=(a[:,2]-a[:,0])*(a[:,3]-a[:,1]); br=(b[:,2]-b[:,0])*(b[:,3]-b[:,1])\n"
            "return inter/(ar[:,None]+br[None,:]-inter)"
        ),
        "torch.rand(4096,4),torch.rand(4096,4)",
        has_gradients=False,
    ),
    "triplet_hard": Operation(
        "",
        "x,y",
        (
            "d=torch.cdist(x,x)\n"
            "same=y[:,None]==y[None,:]\n"
            "p=(d*same).max(1).values; n=(d+1e9*same).min(1).values\n"
            "return F.relu(p-n+0.3).mean()"
        ),
        "torch.randn(2048,128),torch.randint(0,64,(2048,))",
        has_gradients=False,
    ),
    "patch_embed": Operation(
        ("self.c=nn.Conv2d(3,768,16,16)\nself.p=nn.Parameter(torch.zeros(1,196,768))"),
        "x",
        "return self.c(x).flatten(2).transpose(1,2)+self.p",
        "torch.randn(64,3,224,224)",
    ),
    "conv_ln_gelu": Operation(
        ("self.c=nn.Conv2d(96,96,7,padding=3,groups=96)\nself.n=nn.LayerNorm(96)\nself.f=nn.Linear(96,384)"),
        "x",
        ("x=self.c(x).permute(0,2,3,1)\nreturn F.gelu(self.f(self.n(x)))"),
        "torch.randn(16,96,56,56)",
    ),
    "masked_mean_pool": Operation(
        "",
        "x,m",
        ("w=m.float()[...,None]\nreturn F.normalize((x*w).sum(1)/w.sum(1).clamp(min=1e-9),dim=-1)"),
        "torch.randn(64,512,768),torch.randint(0,2,(64,512))",
        has_gradients=False,
    ),
    "relative_logits": Operation(
        "",
        "q,r",
        (
            "b,h,n,d=q.shape\n"
            "l=q@r.transpose(-1,-2)\n"
            "l=F.pad(l,(0,1)).flatten(2)\n"
            "l=F.pad(l,(0,n-1))\n"
            "return l.view(b,h,n+1,2*n-1)[:,:,:n,n-1:]"
        ),
        "torch.randn(8,8,256,64),torch.randn(8,511,64)",
        has_gradients=False,
    ),
    "label_smooth_kl": Operation(
        "",
        "x,t",
        ("p=F.log_softmax(x,-1)\nn=-p.gather(-1,t[:,None]).squeeze(1)\nreturn (0.9*n-0.1*p.mean(-1)).mean()"),
        "torch.randn(8192,8192),torch.randint(0,8192,(8192,))",
    ),
}

if __name__ == "__main__":
    sys.exit(write_folders(__doc__, OPERATIONS))
