# EKS over three zones: on-demand GPUs as a floor, spot above it, a pool with EFA for copies that span
# machines; a name with a certificate; nothing reachable from outside but that name.

terraform {
  required_version = ">= 1.9"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 6.25"
    }
    helm = {
      source  = "hashicorp/helm"
      version = "~> 3.1"
    }
    kubernetes = {
      source  = "hashicorp/kubernetes"
      version = "~> 2.38"
    }
  }

  # A bucket of your own with versioning and encryption, made beforehand; S3 keeps the lock as well.
  # The values come by `terraform init -backend-config=backend.hcl` (see backend.hcl.example).
  backend "s3" {
    encrypt      = true
    use_lockfile = true
  }
}

variable "region" {
  type        = string
  description = "Region of AWS."
}

variable "domain" {
  type        = string
  description = "Name that clients use, such as llm.example.org."
}

variable "zone_id" {
  type        = string
  description = "Route 53 zone that the name belongs to."
}

variable "client_cidrs" {
  type        = set(string)
  description = "Who may reach the service, as addresses."
}

variable "admin_arns" {
  type        = set(string)
  description = "IAM roles that administer the cluster."
}

variable "budget" {
  type        = object({ monthly_usd = number, emails = list(string) })
  description = "What the account may cost in a month, and who is told."
}

provider "aws" {
  region = var.region

  default_tags {
    tags = { Environment = "production" }
  }
}

provider "kubernetes" {
  host                   = module.cluster.cluster_endpoint
  cluster_ca_certificate = base64decode(module.cluster.cluster_ca)

  exec {
    api_version = "client.authentication.k8s.io/v1beta1"
    command     = "aws"
    args        = ["eks", "get-token", "--region", var.region, "--cluster-name", module.cluster.cluster_name]
  }
}

provider "helm" {
  kubernetes = {
    host                   = module.cluster.cluster_endpoint
    cluster_ca_certificate = base64decode(module.cluster.cluster_ca)

    exec = {
      api_version = "client.authentication.k8s.io/v1beta1"
      command     = "aws"
      args        = ["eks", "get-token", "--region", var.region, "--cluster-name", module.cluster.cluster_name]
    }
  }
}

module "cluster" {
  source = "../../../modules/aws"

  name         = "chairlift"
  zones        = 3
  nat_per_zone = true
  admin_arns   = var.admin_arns
  system_pool  = { instance_types = ["m7i.2xlarge"], min = 3, max = 6 }

  gpu_pools = {
    l40s      = { instance_types = ["g6e.4xlarge"], min = 2, max = 6 }
    l40s-spot = { instance_types = ["g6e.4xlarge", "g6e.8xlarge"], spot = true, max = 18 }
    h100-efa  = { instance_types = ["p5.48xlarge"], max = 4, disk_gib = 500, efa_interfaces = 32 }
  }

  domain = {
    name         = var.domain
    zone_id      = var.zone_id
    client_cidrs = var.client_cidrs
    router_tls   = true
  }

  budget = var.budget
}

module "service" {
  source = "../../../modules/service"

  node_ports = module.cluster.node_ports

  eks = {
    cluster_name        = module.cluster.cluster_name
    region              = var.region
    autoscaler_role_arn = module.cluster.autoscaler_role_arn
    efa                 = true
  }
}

output "kubeconfig" {
  description = "The command that lets kubectl in, from inside the network."
  value       = "aws eks update-kubeconfig --region ${var.region} --name ${module.cluster.cluster_name}"
}

output "weights_bucket" {
  description = "Where the weights belong."
  value       = module.cluster.weights_bucket
}

output "url" {
  description = "Where clients find the service."
  value       = module.cluster.url
}
